// The statistics of all measured leaves, as a table.
import { useEffect, useMemo } from "preact/hooks";
import { Bars } from "./bars";
import { counted, number, shape, share, whole } from "./format";
import { JobLine } from "./jobs";
import type { JobName } from "./jobs";
import { descendsAtFirst } from "./state";
import type { State } from "./state";
import { Table } from "./table";
import type { Column } from "./table";
import type { Answered } from "./tree";
import type { Num, Source, StatsRow, StatsTable } from "./types";
import { useWindows } from "./virtual";

function figure(value: Num | undefined, form: "count" | "number" | "share"): string {
  if (value === undefined) return "";
  if (form === "share") return share(value);
  return form === "count" && typeof value === "number" ? whole(value) : number(value);
}

function columnsOf(headings: StatsTable["columns"]): Column<StatsRow>[] {
  return [
    {
      id: "path", heading: "Leaf", width: 170, sort: "path",
      cell: (row) => <bdi dir="ltr" class="text" title={row.path}>{row.path}</bdi>,
    },
    { id: "bars", heading: "Magnitudes", width: 104, hint: "How the magnitudes are distributed, by powers of two", cell: (row) => <Bars values={row.bars} /> },
    {
      id: "shape", heading: "Shape", width: 120, from: 700,
      cell: (row) => <bdi dir="ltr" class="mono" title={shape(row.shape)}>{shape(row.shape)}</bdi>,
    },
    { id: "dtype", heading: "Dtype", width: 84, from: 700, cell: (row) => <bdi dir="ltr" class="mono">{row.dtype ?? ""}</bdi> },
    ...headings.map((heading, at): Column<StatsRow> => ({
      id: `n-${heading.name}`, heading: heading.heading, width: heading.form === "count" ? 104 : 92, right: true,
      sort: heading.name,
      cell: (row) => {
        const value = row.numbers[at];
        return <span class={typeof value === "string" ? "bad" : ""}>{figure(value, heading.form)}</span>;
      },
    })),
  ];
}

export function Stats(props: {
  source: Source; version: number; state: State; canStart: boolean;
  change(part: Partial<State>, push?: boolean): void; onOpen(path: string): void; onLine(line: number): void; onAnswer(answer: Answered): void;
  start(name: JobName): void;
}) {
  const { source, version, state, change } = props;
  const key = JSON.stringify([state.query, state.sort, state.descending]);
  const rows = useWindows(key, version, (from, count) =>
    source.table(state.query, state.sort, state.descending, from, count));
  const table = rows.answer;
  useEffect(() => {
    if (!rows.loading) {
      props.onAnswer({ matches: state.query === "" ? null : rows.total, error: table?.error ?? null });
    }
  }, [rows.total, table?.error, rows.loading]);
  const headings = JSON.stringify(table?.columns ?? []);
  const columns = useMemo(() => columnsOf(JSON.parse(headings) as StatsTable["columns"]), [headings]);
  const order = (name: string): void => {
    change(name === state.sort ? { descending: !state.descending } : { sort: name, descending: descendsAtFirst(name) });
  };
  const sums = table?.sums ?? [];
  return (
    <div class="view">
      {table && (table.job.state === "off" || table.job.state === "failed") && (
        <div class="tools"><JobLine name="stats" job={table.job} canStart={props.canStart} start={props.start} /></div>
      )}
      <Table
        label="Statistics"
        columns={columns}
        rows={rows}
        path={(row) => row.path}
        selected={state.leaf}
        line={state.line}
        onLine={props.onLine}
        onOpen={(row) => props.onOpen(row.path)}
        sort={state.sort}
        descending={state.descending}
        onSort={order}
        start={key}
        pinned
        empty={table?.error
          ? <p class="bad">{table.error}</p>
          : state.query !== "" && table?.job.state === "done" ? <p>No measured leaf matches this search.</p> : <p>Not measured yet.</p>}
      />
      {table && sums.length > 0 && (
        <details class="sums" open={matchMedia("(min-height: 700px) and (min-width: 700px)").matches}>
          <summary>Totals</summary>
          <div class="wide" tabIndex={0} role="region" aria-label="Totals">
            <table>
              <thead>
                <tr>
                  <th scope="col">Section</th>
                  {table.columns.map((column) => <th key={column.name} scope="col" class="right">{column.heading}</th>)}
                </tr>
              </thead>
              <tbody>
                {sums.map((sum) => (
                  <tr key={sum.name}>
                    <th scope="row"><bdi dir="ltr">{sum.name}</bdi></th>
                    {table.columns.map((column, at) => (
                      <td key={column.name} class="right">{figure(sum.row.numbers[at], column.form)}</td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </details>
      )}
      {table && <Skipped skipped={table.skipped} what="measured" />}
    </div>
  );
}

export function Skipped(props: { skipped: { path: string; reason: string }[]; what: string }) {
  const { skipped } = props;
  if (skipped.length === 0) return null;
  return (
    <details class="sums">
      <summary>{counted(skipped.length, "leaf was", "leaves were")} not {props.what}</summary>
      <ul class="wide" tabIndex={0}>
        {skipped.map((one) => <li key={one.path}><bdi dir="ltr" class="mono">{one.path}</bdi>: <bdi dir="ltr">{one.reason}</bdi></li>)}
      </ul>
    </details>
  );
}
