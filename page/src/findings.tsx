// What the checks have found, the filters for it, and a way to each leaf.
import { Chips } from "./chips";
import { counted } from "./format";
import { JobLine, StartButton } from "./jobs";
import type { JobName } from "./jobs";
import { Skipped } from "./stats";
import type { State } from "./state";
import { Table } from "./table";
import type { Column } from "./table";
import type { Finding, Level, Source } from "./types";
import { useWindows } from "./virtual";

const LEVELS: Level[] = ["error", "warning", "note"];
const MANY: Record<Level, string> = { error: "Errors", warning: "Warnings", note: "Notes" };

const COLUMNS: Column<Finding>[] = [
  {
    id: "finding", heading: "Finding", width: 240,
    cell: (finding) => (
      <div class="finding">
        <div class="first">
          <span class={`tag ${finding.level}`}>{finding.level}</span>
          <bdi dir="ltr" class="text mono" title={finding.path}>{finding.path === "" ? "The whole tree" : finding.path}</bdi>
          <bdi dir="ltr" class="code dim">{finding.code}</bdi>
        </div>
        <div class="message" dir="ltr" title={finding.message}>{finding.message}</div>
      </div>
    ),
  },
];

export function FindingsView(props: {
  source: Source; version: number; state: State; canStart: boolean;
  change(part: Partial<State>, push?: boolean): void; onOpen(path: string): void; onLine(line: number): void; start(name: JobName): void;
}) {
  const { source, version, state, change } = props;
  const key = JSON.stringify([state.level, state.code]);
  const rows = useWindows(key, version, (from, count) => source.findings(state.level, state.code, from, count));
  const findings = rows.answer;
  const all = findings ? LEVELS.reduce((sum, level) => sum + findings.levels[level], 0) : 0;
  const job = findings?.job;
  return (
    <div class="view">
      {findings && job && (
        <div class="tools">
          <Chips
            label="Level"
            value={state.level}
            onChoose={(level) => change({ level, code: "" })}
            chips={[
              { value: "", text: "All", count: all },
              ...LEVELS.map((level) => ({ value: level, text: MANY[level], count: findings.levels[level], look: level })),
            ]}
          />
          {findings.codes.length > 0 && (
            <Chips
              label="Kind of finding"
              value={state.code}
              onChoose={(code) => change({ code })}
              chips={findings.codes
                .filter((one) => state.level === "" || one.level === state.level)
                .map((one) => ({ value: one.code, text: one.code, count: one.count, look: one.level }))}
            />
          )}
          {job.state === "failed" && <JobLine name="findings" job={job} canStart={props.canStart} start={props.start} />}
          <span class="size">{counted(findings.checked, "leaf", "leaves")} checked</span>
        </div>
      )}
      <Table
        label="Findings"
        columns={COLUMNS}
        rows={rows}
        rowHeight={52}
        path={(finding) => (finding.leaf ? finding.path : null)}
        selected={state.leaf}
        line={state.line}
        onLine={props.onLine}
        onOpen={(finding) => {
          if (finding.leaf) props.onOpen(finding.path);
        }}
        start={key}
        detail={all === 0 ? undefined : (finding) => (
          <p>
            <span class={`tag ${finding.level}`}>{finding.level}</span>{" "}
            <bdi dir="ltr" class="mono">{finding.path}</bdi> <bdi dir="ltr">{finding.message}</bdi>
          </p>
        )}
        empty={job?.state === "off" ? (
          <>
            <p>Not checked yet{job.message ? <>: <bdi dir="ltr">{job.message}</bdi></> : "."}</p>
            {props.canStart && <StartButton name="findings" job={job} start={props.start} />}
          </>
        ) : job?.state === "running" ? <p>Nothing found so far.</p>
          : job?.state === "failed" ? <p class="bad">The check did not end, so nothing can be said.</p>
            : all > 0 ? <p>No finding of this kind.</p>
              : <p><span class="health ok" aria-hidden="true" /> Nothing found in {counted(findings?.checked ?? 0, "leaf", "leaves")}.</p>}
      />
      {findings && <Skipped skipped={findings.skipped} what="checked" />}
    </div>
  );
}
