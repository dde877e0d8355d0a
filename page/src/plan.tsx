// What loading the second into the first would do.
import { useEffect } from "preact/hooks";
import { Chips } from "./chips";
import { counted, percent, shape } from "./format";
import type { State } from "./state";
import { Table } from "./table";
import type { Column } from "./table";
import type { Answered } from "./tree";
import type { PlanRow, Source } from "./types";
import { useWindows } from "./virtual";

function look(status: string): string {
  return status === "loads" ? "ok" : status === "kept" ? "note" : "error";
}

const COLUMNS: Column<PlanRow>[] = [
  { id: "path", heading: "Into", width: 150, cell: (row) => <bdi dir="ltr" class="text" title={row.path}>{row.path}</bdi> },
  { id: "status", heading: "Status", width: 104, cell: (row) => <bdi dir="ltr" class={`tag ${look(row.status)}`}>{row.status}</bdi> },
  {
    // A problem has a message and mostly no source, so that one column has room for either.
    id: "from", heading: "From", width: 200, grow: 1.4, from: 440,
    cell: (row) => (row.message !== null
      ? <bdi dir="ltr" title={row.message}>{row.message}</bdi>
      : (
        <div class="name">
          <bdi dir="ltr" class="text is-leaf" title={row.source ?? ""}>{row.source ?? ""}</bdi>
          <bdi dir="ltr" class="below" title={row.how}>{row.how}</bdi>
        </div>
      )),
  },
  { id: "shape", heading: "Shape", width: 120, from: 940, cell: (row) => <bdi dir="ltr" class="mono">{row.shape === null ? "" : shape(row.shape)}</bdi> },
  { id: "dtype", heading: "Dtype", width: 88, from: 940, cell: (row) => <bdi dir="ltr" class="mono">{row.dtype ?? ""}</bdi> },
];

export function PlanView(props: {
  source: Source; version: number; state: State;
  change(part: Partial<State>, push?: boolean): void; onOpen(path: string): void; onLine(line: number): void; onAnswer(answer: Answered): void;
}) {
  const { source, version, state, change } = props;
  const key = JSON.stringify([state.status, state.query]);
  const rows = useWindows(key, version, (from, count) => source.plan(state.status, state.query, from, count));
  const plan = rows.answer;
  useEffect(() => {
    if (!rows.loading) props.onAnswer({ matches: state.query === "" ? null : rows.total, error: plan?.error ?? null });
  }, [rows.total, plan?.error, rows.loading]);
  // Problems first, then what loads.
  const counts = [...(plan?.counts ?? [])].sort((a, b) =>
    Number(look(a.status) !== "error") - Number(look(b.status) !== "error"));
  const all = counts.reduce((sum, one) => sum + one.count, 0);
  const problems = counts.reduce((sum, one) => sum + (look(one.status) === "error" ? one.count : 0), 0);
  const isBroken = plan !== null && plan.error !== null && all === 0;
  return (
    <div class="view">
      {plan && !isBroken && (
        <div class="tools">
          <p class="verdict">
            <span class={`health ${plan.holds ? "ok" : "error"}`} aria-hidden="true" />
            <strong>{plan.holds ? "Loads" : "Does not load"}</strong>
            <span>
              {percent(plan.coverage)} of the parameters get a value
              {problems > 0 ? `, ${counted(problems, "problem")}` : ""}
            </span>
          </p>
          <p class="sides">
            <bdi dir="ltr" title={plan.names[1]}>{plan.names[1]}</bdi>
            <span aria-label="into">→</span>
            <bdi dir="ltr" title={plan.names[0]}>{plan.names[0]}</bdi>
          </p>
          <Chips
            label="Status"
            value={state.status}
            onChoose={(status) => change({ status })}
            chips={[
              { value: "", text: "all", count: all },
              ...counts.map((one) => ({ value: one.status, text: one.status, count: one.count, look: look(one.status) })),
            ]}
          />
          {plan.notes.map((note) => <p key={note} class="remark" dir="ltr">{note}</p>)}
          {plan.proposals.length > 0 && (
            <details class="proposals" open={plan.proposals.length <= 3}>
              <summary>{counted(plan.proposals.length, "possible rename")}</summary>
              <ul>{plan.proposals.map((one) => <li key={one}><code dir="ltr">{one}</code></li>)}</ul>
            </details>
          )}
        </div>
      )}
      <Table
        label="Plan for loading"
        columns={COLUMNS}
        rows={rows}
        path={(row) => (row.leaf ? row.path : null)}
        selected={state.leaf}
        line={state.line}
        onLine={props.onLine}
        onOpen={(row) => {
          if (row.leaf) props.onOpen(row.path);
        }}
        start={key}
        detail={(row) => (
          <p>
            <span class={`tag ${look(row.status)}`}>{row.status}</span>{" "}
            <bdi dir="ltr" class="mono">{row.path}{row.source !== null ? ` ← ${row.source}` : ""}</bdi>{" "}
            <bdi dir="ltr">{row.message ?? row.how}</bdi>
          </p>
        )}
        empty={plan?.error ? <p class="bad">{plan.error}</p>
          : state.query !== "" ? <p>Nothing in the plan matches this search.</p> : <p>The plan has no line of this kind.</p>}
      />
    </div>
  );
}
