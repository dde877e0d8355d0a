// The tree: modules and their leaves, or a flat list of leaves if it is sorted.
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Bars } from "./bars";
import { bytes, counted, number, percent, shape, short, whole } from "./format";
import { address, descendsAtFirst } from "./state";
import type { State } from "./state";
import { Table } from "./table";
import type { Column } from "./table";
import type { Health, Row, RowsAsked, Sort, Source, Summary } from "./types";
import { useWindows } from "./virtual";

export interface Answered {
  matches: number | null;
  error: string | null;
}

interface Props {
  source: Source;
  version: number;
  summary: Summary;
  state: State;
  change(part: Partial<State>, push?: boolean): void;
  onOpen(path: string): void;
  onLine(line: number): void;
  reveals: number; // grows when the open leaf shall be scrolled to, even if it was opened from here
  onAnswer(answer: Answered): void;
}

const SORTS: Record<Sort, string> = {
  tree: "Tree", path: "Name", bytes: "Bytes", size: "Elements", dtype: "Dtype", std: "Standard deviation",
  absmax: "Largest magnitude", zeros: "Zeros", change: "Change",
};
const ALL = 99; // deeper than any tree
const SMALL = 100; // names; such trees start unfolded
const VISIBLE = 0.02; // of all bytes; less would be a dot, not a bar
const HEALTH: Record<NonNullable<Health>, string> = {
  error: "Error found", warning: "Warning found", note: "Note", ok: "Nothing found",
};

export function HealthMark(props: { health: Health }) {
  const { health } = props;
  if (health === null || !Object.hasOwn(HEALTH, health)) return null;
  return (
    <span class={`health ${health}`} title={HEALTH[health]}>
      <span class="hidden">{HEALTH[health]}</span>
    </span>
  );
}

function Name(props: { row: Row; isFlat: boolean; tieAddress(path: string): string }) {
  const { row, isFlat } = props;
  const isNode = row.kind === "node" && row.end > row.id + 1;
  const name = isFlat ? row.path : row.name === "" ? (row.path === "" ? "(all)" : row.path) : row.name;
  return (
    <div class="name" style={isFlat ? undefined : { "--depth": String(row.depth) }}>
      {!isFlat && <span class={`twisty${isNode ? (row.open ? " open" : " folded") : ""}`} aria-hidden="true" />}
      <bdi dir="ltr" class={`text is-${row.kind}`} title={row.path}>{name}</bdi>
      {row.kind === "value" && row.value !== null && <bdi dir="ltr" class="below" title={row.value}>= {row.value}</bdi>}
      {row.tied && (
        <a class="tie" href={props.tieAddress(row.tied.to)} title={`Tied to ${row.tied.to}${row.tied.op ? ` (${row.tied.op})` : ""}`}>
          tied to <bdi dir="ltr">{row.tied.to}</bdi>
        </a>
      )}
      {row.shared > 1 && <span class="tie" title="This leaf has several names">{row.shared} names</span>}
      {row.kind === "node" && !row.open && row.leaves > 0 && <span class="below">{counted(row.leaves, "leaf", "leaves")}</span>}
    </div>
  );
}

function Bytes(props: { row: Row; all: number }) {
  const { row, all } = props;
  if (row.bytes === 0) return row.tied ? <span class="dim" title="Counted where its other name is">–</span> : <>{row.kind === "value" ? "" : "0 B"}</>;
  const part = all > 0 ? Math.min(1, row.bytes / all) : 0;
  return (
    <span class="share" title={`${whole(row.bytes)} bytes, ${percent(part)} of all`}>
      {bytes(row.bytes)}
      {part >= VISIBLE && <span class="part" style={{ width: `${part * 100}%` }} />}
    </span>
  );
}

function spoiled(row: Row): string | null {
  const stats = row.stats;
  if (!stats) return null;
  const parts = [stats.nan > 0 ? `${whole(stats.nan)} NaN` : "", stats.inf > 0 ? `${whole(stats.inf)} infinite` : ""];
  return parts.filter(Boolean).join(", ") || null;
}

function columnsOf(summary: Summary, isFlat: boolean, tieAddress: (path: string) => string): Column<Row>[] {
  const all = summary.counts.bytes;
  const columns: Column<Row>[] = [
    {
      id: "name", heading: "Name", width: 160, sort: "path",
      cell: (row) => <Name row={row} isFlat={isFlat} tieAddress={tieAddress} />,
    },
    {
      id: "shape", heading: "Shape", width: 150, grow: 0.25, from: 620, hint: "Shape of a leaf, or class of a module",
      cell: (row) => {
        const text = row.kind === "node" ? row.type ?? "" : row.kind === "value" ? "" : shape(row.shape);
        return <bdi dir="ltr" class={row.kind === "leaf" ? "mono" : "dim"} title={text}>{text}</bdi>;
      },
    },
    {
      id: "dtype", heading: "Dtype", width: 92, from: 780, sort: "dtype",
      cell: (row) => <bdi dir="ltr" class="mono" title={row.role ?? undefined}>{row.dtype ?? ""}</bdi>,
    },
    {
      id: "role", heading: "Role", width: 150, from: 1500,
      cell: (row) => <bdi dir="ltr" class="dim" title={row.role ?? undefined}>{row.role ?? ""}</bdi>,
    },
    {
      id: "size", heading: "Elements", width: 104, from: 1000, right: true, sort: "size",
      cell: (row) => (row.kind === "value" || row.tied ? "" : <span title={whole(row.size)}>{short(row.size)}</span>),
    },
    { id: "bytes", heading: "Bytes", width: 92, right: true, sort: "bytes", cell: (row) => <Bytes row={row} all={all} /> },
    {
      id: "mean", heading: "Mean", width: 92, from: 1120, right: true,
      cell: (row) => (row.stats ? number(row.stats.mean) : row.kind === "leaf" && !row.tied ? <span class="dim">·</span> : ""),
    },
    {
      id: "std", heading: "Std", width: 92, from: 900, right: true, sort: "std", hint: "Standard deviation",
      cell: (row) => (row.stats ? number(row.stats.std) : row.kind === "leaf" && !row.tied ? <span class="dim">·</span> : ""),
    },
    {
      id: "absmax", heading: "Largest", width: 92, from: 1400, right: true, sort: "absmax", hint: "Largest magnitude",
      cell: (row) => (row.stats ? number(row.stats.absmax) : ""),
    },
    {
      id: "zeros", heading: "Zeros", width: 92, from: 1600, right: true, sort: "zeros",
      cell: (row) => (row.stats ? whole(row.stats.zeros) : ""),
    },
    {
      id: "bars", heading: "Magnitudes", width: 104, from: 520, hint: "How the magnitudes are distributed, by powers of two",
      cell: (row) => {
        const bad = spoiled(row);
        return bad !== null ? <span class="bad">{bad}</span> : row.stats ? <Bars values={row.stats.bars} /> : null;
      },
    },
  ];
  if (summary.views.includes("diff")) {
    columns.push({
      id: "change", heading: "Change", width: 96, from: 700, sort: "change",
      cell: (row) => (row.change ? <span class={`change ${row.change}`}>{row.change}</span> : null),
    });
  }
  columns.push({ id: "health", heading: "Check", width: 46, from: 300, cell: (row) => <HealthMark health={row.health} /> });
  return columns;
}

export function Tree(props: Props) {
  const { source, version, summary, state, change } = props;
  const sort: Sort = Object.hasOwn(SORTS, state.sort) && state.sort !== "" ? (state.sort as Sort) : "tree";
  const isFlat = sort !== "tree";
  const depth = state.depth ?? (summary.counts.names <= SMALL ? ALL : 3);
  const asked: RowsAsked = {
    query: state.query, sort, descending: isFlat && state.descending, depth, toggled: isFlat ? [] : state.toggled,
    from: 0, count: 0,
  };
  const start = JSON.stringify([asked.query, sort, asked.descending, depth]);
  const rows = useWindows(`${start}${asked.toggled.join()}`, version, (from, count) =>
    source.rows({ ...asked, from, count }));
  const answer = rows.answer;
  useEffect(() => {
    if (!rows.loading) props.onAnswer({ matches: answer?.matches ?? null, error: answer?.error ?? null });
  }, [answer?.matches, answer?.error, rows.loading]);

  const latest = useRef(state);
  latest.current = state;
  const tieAddress = useCallback((path: string) => address({ ...latest.current, leaf: path }), []);
  const columns = useMemo(() => columnsOf(summary, isFlat, tieAddress), [summary, isFlat]);

  const toggle = (row: Row): void => {
    const toggled = state.toggled.includes(row.id)
      ? state.toggled.filter((id) => id !== row.id)
      : [...state.toggled, row.id];
    change({ toggled });
  };
  const canToggle = (row: Row): boolean => !isFlat && row.kind === "node" && row.end > row.id + 1;

  // The open leaf is shown in the tree, wherever it was opened from.
  const [reveal, setReveal] = useState<{ index: number } | null>(null);
  const clicked = useRef<string | null>(null);
  const revealed = useRef(props.reveals);
  useEffect(() => {
    const path = state.leaf;
    const isAsked = revealed.current !== props.reveals;
    revealed.current = props.reveals;
    if (path === null || (clicked.current === path && !isAsked)) return undefined;
    clicked.current = null;
    let isCurrent = true;
    source.find(path, asked).then((found) => {
      if (!isCurrent || found.index === null) return;
      if (!isFlat && found.toggled.join() !== asked.toggled.join()) change({ toggled: found.toggled });
      setReveal({ index: found.index });
    }, () => {});
    return () => {
      isCurrent = false;
    };
  }, [state.leaf, props.reveals]);

  const onOpen = (row: Row): void => {
    if (row.kind === "leaf") {
      clicked.current = row.path;
      props.onOpen(row.path);
    } else if (canToggle(row)) {
      toggle(row);
    }
  };
  const parentOf = (index: number, level: number): number | null => {
    for (let above = index - 1; above >= 0; above -= 1) {
      const row = rows.row(above);
      if (row === undefined) return null;
      if (row.depth < level) return above;
    }
    return null;
  };
  const onKey = (key: string, row: Row, index: number): number | null => {
    if (isFlat) return null;
    if (key === "ArrowRight" && canToggle(row)) {
      if (row.open) return index + 1;
      toggle(row);
      return index;
    }
    if (key === "ArrowLeft") {
      if (canToggle(row) && row.open) {
        toggle(row);
        return index;
      }
      return parentOf(index, row.depth);
    }
    return null;
  };
  const order = (name: string): void => {
    if (name === "tree" || (name === sort && state.descending !== descendsAtFirst(name))) {
      change({ sort: "", descending: false }); // the third click on a heading leads back to the tree
    } else if (name === sort) {
      change({ descending: !state.descending });
    } else {
      change({ sort: name, descending: descendsAtFirst(name) });
    }
  };
  const sorts = (Object.keys(SORTS) as Sort[]).filter((name) => name !== "change" || summary.views.includes("diff"));
  return (
    <div class="view">
      <div class="tools" role="group" aria-label="Order and folding">
        <label class="choice">
          Sort
          <select
            value={sort}
            onChange={(event) => {
              const name = event.currentTarget.value;
              change(name === "tree" ? { sort: "", descending: false } : { sort: name, descending: descendsAtFirst(name) });
            }}
          >
            {sorts.map((name) => <option key={name} value={name}>{SORTS[name]}</option>)}
          </select>
        </label>
        {isFlat ? (
          <button type="button" onClick={() => change({ descending: !state.descending })}>
            {state.descending ? "Largest first" : "Smallest first"}
          </button>
        ) : (
          <>
            <label class="choice">
              Depth
              <select
                value={String(depth)}
                onChange={(event) => change({ depth: Number(event.currentTarget.value), toggled: [] })}
              >
                {[...new Set([1, 2, 3, 4, 5, 6, depth])].sort((a, b) => a - b).filter((one) => one !== ALL).map((one) => (
                  <option key={one} value={String(one)}>{one}</option>
                ))}
                <option value={String(ALL)}>all</option>
              </select>
            </label>
            <button type="button" data-testid="unfold-all" onClick={() => change({ depth: ALL, toggled: [] })}>Unfold all</button>
            <button type="button" onClick={() => change({ depth: 1, toggled: [] })}>Fold all</button>
          </>
        )}
        <span class="size">{rows.total === null ? "" : counted(rows.total, isFlat ? "leaf" : "line", isFlat ? "leaves" : "lines")}</span>
      </div>
      <Table
        label={isFlat ? "Leaves" : "Tree of parameters"}
        columns={columns}
        rows={rows}
        path={(row) => row.path}
        place={isFlat ? undefined : (row) => ({ level: row.depth + 1, expanded: canToggle(row) ? row.open : null })}
        selected={state.leaf}
        line={state.line}
        onLine={props.onLine}
        onOpen={onOpen}
        onKey={onKey}
        sort={sort}
        descending={state.descending}
        onSort={order}
        start={start}
        reveal={reveal}
        look={(row) => `is-${row.kind}`}
        empty={answer?.error
          ? <p class="bad">{answer.error}</p>
          : state.query !== "" ? <p>No leaf matches this search.</p> : <p>There are no leaves here.</p>}
      />
    </div>
  );
}
