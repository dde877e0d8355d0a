// A list with columns of which only a part is drawn. The tree and all tables are such lists.
import { Component } from "preact";
import type { ComponentChildren, HTMLAttributes, VNode } from "preact";
import { useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { moved } from "./keyboard";
import { useVirtual } from "./virtual";

export interface Column<Row> {
  id: string;
  heading: string;
  width: number; // in pixels, at least
  cell(row: Row): ComponentChildren;
  grow?: number; // its part of the room that is left; the first column has 1
  right?: boolean; // numbers
  sort?: string; // the name of the order that a click on the heading asks for
  from?: number; // the width of the list from which on there is room for it
  hint?: string; // a longer heading
}

interface Rows<Row> {
  total: number | null;
  loading: boolean;
  failure: string | null;
  row(index: number): Row | undefined;
  want(first: number, last: number): void;
}

export interface Place {
  level: number;
  expanded: boolean | null; // null: nothing to unfold
}

interface Props<Row> {
  label: string;
  columns: Column<Row>[];
  rows: Rows<Row>;
  rowHeight?: number;
  path(row: Row): string | null; // what a click would open
  place?(row: Row): Place; // of a tree
  selected: string | null;
  line: number; // where the list begins when it is shown first
  onLine(line: number): void; // where it was scrolled to, when that ends
  onOpen(row: Row, index: number): void;
  /** Keys that the list itself does not know; returns the line to go to, or null. */
  onKey?(key: string, row: Row, index: number): number | null;
  sort?: string;
  descending?: boolean;
  onSort?(sort: string): void;
  start: string; // when it changes, the list begins at the top again
  reveal?: { index: number } | null; // a line to scroll to, once
  empty: ComponentChildren;
  detail?(row: Row): VNode | null; // the whole text of the line that has the focus
  pinned?: boolean; // the first column stays when the others scroll sideways
  look?(row: Row): string; // a class
}

const HEAD = 32;
const QUIET = 400; // milliseconds without scrolling, after which the place goes into the address
const isCoarse = typeof matchMedia === "function" && matchMedia("(pointer: coarse)").matches;
export const ROW = isCoarse ? 40 : 28;

let isReady = false;
/** Marks when the first rows can be seen; a test reads it. */
function markReady(): void {
  if (isReady) return;
  isReady = true;
  requestAnimationFrame(() => requestAnimationFrame(() => performance.mark("leafwise-ready")));
}

interface LineProps<Row> {
  id: string;
  index: number;
  row: Row | undefined;
  columns: Column<Row>[];
  isActive: boolean;
  isSelected: boolean;
  path: string | null;
  place: Place | null;
  look: string;
}

/** One line. It is drawn again only if something in it has changed, so that scrolling costs only the new lines. */
class Line<Row> extends Component<LineProps<Row>> {
  shouldComponentUpdate(next: LineProps<Row>): boolean {
    const last = this.props;
    return next.row !== last.row || next.columns !== last.columns || next.isActive !== last.isActive
      || next.isSelected !== last.isSelected || next.index !== last.index;
  }

  render() {
    const { id, index, row, columns, isActive, isSelected, path, place, look } = this.props;
    if (row === undefined) {
      return (
        <div class="line waiting" role="row" aria-rowindex={index + 2} aria-busy="true">
          <div role="gridcell" class="cell"><span class="blank">{"\u00a0"}</span></div>
        </div>
      );
    }
    const attributes: HTMLAttributes<HTMLDivElement> = {};
    if (place) {
      attributes["aria-level"] = place.level;
      if (place.expanded !== null) attributes["aria-expanded"] = place.expanded;
    }
    return (
      <div
        id={id}
        class={`line ${look}${isActive ? " active" : ""}${isSelected ? " selected" : ""}`}
        role="row"
        aria-rowindex={index + 2}
        aria-selected={isSelected}
        data-testid="row"
        data-index={index}
        data-path={path ?? undefined}
        {...attributes}
      >
        {columns.map((column) => (
          <div key={column.id} role="gridcell" class={column.right ? `cell right c-${column.id}` : `cell c-${column.id}`}>
            {column.cell(row)}
          </div>
        ))}
      </div>
    );
  }
}

export function Table<Row>(props: Props<Row>) {
  const { rows, rowHeight = ROW } = props;
  const id = useId();
  const total = rows.total ?? 0;
  const virtual = useVirtual(total, rowHeight, HEAD);
  const [active, setActive] = useState(-1);
  const [hasFocus, setFocus] = useState(false);

  const columns = useMemo(
    () => props.columns.filter((column) => !column.from || virtual.width === 0 || virtual.width >= column.from),
    [props.columns, virtual.width],
  );
  const tracks = columns
    .map(({ width, grow }, at) => (at === 0 || grow ? `minmax(${width}px, ${grow ?? 1}fr)` : `${width}px`))
    .join(" ");
  const least = columns.reduce((sum, column) => sum + column.width, 0) + 24;

  const begin = useRef(props.start);
  useLayoutEffect(() => {
    if (begin.current === props.start) return;
    begin.current = props.start;
    setActive(-1);
    virtual.to(0);
    rows.want(0, virtual.page);
  }, [props.start]);
  useEffect(() => rows.want(virtual.first, Math.max(virtual.first, virtual.last - 1)), [rows, virtual.first, virtual.last]);
  // The place in the list is restored as soon as the list is long enough, unless somebody has scrolled before.
  const restored = useRef(props.line === 0);
  useLayoutEffect(() => {
    if (restored.current || total === 0) return;
    restored.current = true;
    virtual.to(props.line);
  }, [total]);
  const quiet = useRef<ReturnType<typeof setTimeout>>(undefined);
  const latest = useRef({ virtual, props });
  latest.current = { virtual, props };
  useEffect(() => () => clearTimeout(quiet.current), []);
  const onScroll = (): void => {
    virtual.scrolled();
    clearTimeout(quiet.current);
    quiet.current = setTimeout(() => {
      if (!restored.current) return;
      const line = latest.current.virtual.firstVisible();
      if (line !== latest.current.props.line) latest.current.props.onLine(line);
    }, QUIET);
  };
  // A line to go to may come before the list is long enough for it.
  const revealed = useRef<{ index: number } | null>(null);
  useEffect(() => {
    if (!props.reveal || revealed.current === props.reveal || props.reveal.index >= total || rows.loading) return;
    revealed.current = props.reveal;
    virtual.show(props.reveal.index, true);
    setActive(props.reveal.index);
  });
  const firstRow = rows.row(virtual.first);
  useEffect(() => {
    if (firstRow !== undefined) markReady();
  }, [firstRow !== undefined]);

  const go = (index: number): void => {
    setActive(index);
    virtual.show(index);
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.target !== event.currentTarget || event.ctrlKey || event.metaKey || event.altKey) return;
    const row = active < 0 ? undefined : rows.row(active);
    let target = moved(event.key, active, total, virtual.page);
    if (target === null && row !== undefined) {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        props.onOpen(row, active);
        return;
      }
      target = props.onKey?.(event.key, row, active) ?? null;
    }
    if (target === null) return;
    event.preventDefault();
    go(target);
  };
  const onClick = (event: MouseEvent): void => {
    if (!(event.target instanceof Element) || event.target.closest("a, button")) return;
    // People select text to copy it; that is no click.
    if (getSelection()?.type === "Range") return;
    const line = event.target.closest<HTMLElement>(".line[data-index]");
    if (!line) return;
    const index = Number(line.dataset["index"]);
    const row = rows.row(index);
    if (row === undefined) return;
    setActive(index);
    props.onOpen(row, index);
  };

  const lines: VNode[] = [];
  for (let index = virtual.first; index < virtual.last; index += 1) {
    const row = rows.row(index);
    const path = row === undefined ? null : props.path(row);
    lines.push(
      <Line
        key={index % virtual.pool}
        id={`${id}-${index}`}
        index={index}
        row={row}
        columns={columns as Column<unknown>[]}
        isActive={hasFocus && index === active}
        isSelected={path !== null && path === props.selected}
        path={path}
        place={row === undefined || !props.place ? null : props.place(row)}
        look={row === undefined || !props.look ? "" : props.look(row)}
      />,
    );
  }
  const isDrawn = active >= virtual.first && active < virtual.last && rows.row(active) !== undefined;
  const activeRow = active < 0 ? undefined : rows.row(active);
  const detail = activeRow !== undefined && props.detail ? props.detail(activeRow) : null;
  return (
    <div class="table">
      <div
        ref={virtual.scroller}
        class={`scroller${props.pinned ? " pinned" : ""}`}
        data-testid="list"
        role={props.place ? "treegrid" : "grid"}
        aria-label={props.label}
        aria-rowcount={rows.total === null ? -1 : total + 1}
        aria-readonly="true"
        aria-busy={rows.loading}
        aria-activedescendant={hasFocus && isDrawn ? `${id}-${active}` : undefined}
        tabIndex={0}
        onScroll={onScroll}
        onKeyDown={onKeyDown}
        onClick={onClick}
        onFocus={(event) => {
          if (event.target !== event.currentTarget) return;
          setFocus(true);
          if (active < 0 && total > 0) setActive(Math.min(total - 1, virtual.first === 0 ? 0 : virtual.first + 5));
        }}
        onBlur={() => setFocus(false)}
        style={{ "--columns": tracks, "--least": `${least}px`, "--row": `${rowHeight}px` }}
      >
        <div role="rowgroup" class="head">
          <div role="row" class="line" aria-rowindex={1}>
            {columns.map((column) => {
              const isSorted = column.sort !== undefined && column.sort === props.sort;
              return (
                <div
                  key={column.id}
                  role="columnheader"
                  class={column.right ? `cell right c-${column.id}` : `cell c-${column.id}`}
                  title={column.hint}
                  aria-sort={isSorted ? (props.descending ? "descending" : "ascending") : undefined}
                >
                  {column.sort !== undefined && props.onSort ? (
                    <button type="button" class="sort" onClick={() => props.onSort?.(column.sort!)}>
                      {column.heading}
                      <span class="arrow" aria-hidden="true">{isSorted ? (props.descending ? "↓" : "↑") : ""}</span>
                    </button>
                  ) : column.heading}
                </div>
              );
            })}
          </div>
        </div>
        <div role="rowgroup" class="space" style={{ height: `${virtual.height}px` }}>
          <div role="presentation" class="lines" style={{ transform: `translateY(${virtual.top}px)` }}>{lines}</div>
        </div>
        {rows.total === null && rows.failure === null && <div class="skeleton" aria-hidden="true" />}
      </div>
      {rows.total === 0 && !rows.loading && rows.failure === null && <div class="empty">{props.empty}</div>}
      {rows.failure !== null && (
        <div class={rows.loading ? "empty" : "strip"} role="alert"><p class="bad" dir="ltr">{rows.failure}</p></div>
      )}
      {props.detail && (
        <div class="detail" aria-live="polite">
          {detail ?? <p class="dim">Choose a line to read all of it here.</p>}
        </div>
      )}
    </div>
  );
}
