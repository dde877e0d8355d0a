// What is known about the file as a whole: dtypes, roles, ties and metadata.
import { useRef, useState } from "preact/hooks";
import { bytes, counted, percent, short, whole } from "./format";
import type { Source, Summary, Total, Totals } from "./types";

function TotalsTable(props: { heading: string; totals: Total[]; all: number }) {
  if (props.totals.length === 0) return null;
  return (
    <table>
      <thead>
        <tr>
          <th scope="col">{props.heading}</th>
          <th scope="col" class="right">Leaves</th>
          <th scope="col" class="right">Parameters</th>
          <th scope="col" class="right">Bytes</th>
          <th scope="col" class="right">Share</th>
        </tr>
      </thead>
      <tbody>
        {props.totals.map((total) => (
          <tr key={total.name}>
            <th scope="row"><bdi dir="ltr">{total.name}</bdi></th>
            <td class="right">{whole(total.leaves)}</td>
            <td class="right">{short(total.parameters)}</td>
            <td class="right">{bytes(total.bytes)}</td>
            <td class="right">{props.all > 0 ? percent(total.bytes / props.all) : ""}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

export function About(props: { source: Source; summary: Summary; onOpen(path: string): void }) {
  const { summary } = props;
  const dialog = useRef<HTMLDialogElement>(null);
  const [isOpen, setOpen] = useState(false);
  const [totals, setTotals] = useState<Totals | null>(null);
  return (
    <>
      <button
        type="button"
        class="about"
        data-testid="about"
        onClick={() => {
          setOpen(true);
          // They are not needed before; if they cannot be had, the rest is shown without them.
          props.source.totals().then(setTotals, () => undefined);
          dialog.current?.showModal();
        }}
      >Details</button>
      <dialog
        ref={dialog}
        aria-label="Details"
        onClose={() => setOpen(false)}
        onClick={(event) => {
          if (event.target === event.currentTarget) dialog.current?.close(); // a click beside it
        }}
      >
        {isOpen && (
          <div class="inside">
            <div class="title">
              <h2 dir="ltr">{summary.title}</h2>
              <button type="button" onClick={() => dialog.current?.close()}>Close</button>
            </div>
            <TotalsTable heading="Dtype" totals={totals?.dtypes ?? []} all={summary.counts.bytes} />
            <TotalsTable heading="Role" totals={totals?.roles ?? []} all={summary.counts.bytes} />
            {summary.ties.length > 0 && (
              <section>
                <h3>{counted(summary.tie_count, "tied leaf", "tied leaves")}</h3>
                <ul class="plain">
                  {summary.ties.map((tie) => (
                    <li key={tie.path}>
                      <button
                        type="button"
                        class="link mono"
                        dir="ltr"
                        onClick={() => {
                          dialog.current?.close();
                          props.onOpen(tie.path);
                        }}
                      >{tie.path}</button>
                      {tie.names.map((name) => (
                        <span key={name.path} class="mono dim" dir="ltr"> = {name.path}{name.op ? ` (${name.op})` : ""}</span>
                      ))}
                    </li>
                  ))}
                </ul>
                {summary.tie_count > summary.ties.length && <p class="dim">The first {summary.ties.length} are listed.</p>}
              </section>
            )}
            {summary.metadata.length > 0 && (
              <section>
                <h3>Metadata of the file</h3>
                <dl class="metadata">
                  {summary.metadata.map((one, at) => (
                    <div key={at}>
                      <dt dir="ltr">{one.name}</dt>
                      <dd dir="ltr" class="mono">{one.value}</dd>
                    </div>
                  ))}
                </dl>
              </section>
            )}
          </div>
        )}
      </dialog>
    </>
  );
}
