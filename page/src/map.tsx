// The map: every leaf is a rectangle whose area is its bytes, each tensor counted once.
import { hierarchy, treemap, treemapSquarify, type HierarchyRectangularNode } from "d3-hierarchy";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { calmMotion, useAnswer, useCalm, useSize, useTheme } from "./answers";
import { COLOR_NAMES, palette, type LegendEntry, type Palette } from "./colors";
import { bytes, percent, whole } from "./format";
import "./map.css";
import type { Cell, Color, Source, TreeMap } from "./types";

const HEADER = 18; // height of the header of a node, in pixels
const LETTER = 6.3; // about the width of a letter of a label
const MOST_LINKS = 300;
const SLICE = 5; // milliseconds of a frame for making cells; the browser needs several times as long to lay them out

/** A node with a single child is drawn as one with it: "q_proj" and "weight" become "q_proj.weight". */
interface Item {
  cell: Cell;
  label: string;
  merged: string[]; // the paths of the nodes above that are drawn as one with it
  children: Item[];
}

interface Box {
  key: string;
  cell: Cell;
  label: string;
  merged: string[];
  header: boolean; // of a node: the box is its header, `frame` is all of it
  frame: Place;
  place: Place;
  depth: number;
}
interface Place {
  x: number;
  y: number;
  width: number;
  height: number;
}

function itemOf(cell: Cell, label: string, merged: string[]): Item {
  const children = cell.children ?? [];
  if (children.length === 1) return itemOf(children[0]!, `${label}.${children[0]!.name}`, [...merged, cell.path]);
  return { cell, label, merged, children: children.map((child) => itemOf(child, child.name, [])) };
}

function countAliases(cell: Cell): number {
  if (cell.kind === "alias") return 1;
  return (cell.children ?? []).reduce((sum, child) => sum + countAliases(child), 0);
}

/** Where everything is drawn, parents before their children. */
function boxesOf(map: TreeMap, width: number, height: number): Box[] {
  const root: Item = {
    cell: map.cell,
    label: map.cell.name,
    merged: [],
    children: (map.cell.children ?? []).map((child) => itemOf(child, child.name, [])),
  };
  // Further names of tied leaves have no bytes, and get a little area, so that they can be seen and pointed at.
  const aliases = countAliases(map.cell);
  const total = map.cell.bytes;
  const aliasArea = total > 0 ? total * Math.min(0.004, 0.06 / Math.max(1, aliases)) : 1;
  const tree = hierarchy<Item>(root, (item) => item.children)
    .sum((item) => (item.children.length > 0 ? 0 : item.cell.kind === "alias" ? aliasArea : Math.max(0, item.cell.bytes)))
    .sort((a, b) => (b.value ?? 0) - (a.value ?? 0));
  if (!((tree.value ?? 0) > 0)) return [];
  // Decided once, while the layout is computed: rounding changes sizes afterwards.
  const headed = new Set<HierarchyRectangularNode<Item>>();
  const top = (node: HierarchyRectangularNode<Item>) => {
    if (node.depth === 0) return 0;
    if (node.x1 - node.x0 < 44 || node.y1 - node.y0 < HEADER + 16) return tiny(node) ? 0 : 2;
    headed.add(node);
    return HEADER;
  };
  const tiny = (node: HierarchyRectangularNode<Item>) => Math.min(node.x1 - node.x0, node.y1 - node.y0) < 24;
  const placed = treemap<Item>()
    .tile(treemapSquarify.ratio(1.3))
    .size([width, height])
    .round(true)
    .paddingInner(1)
    .paddingOuter((node) => (node.depth === 0 || tiny(node) ? 0 : 2))
    .paddingTop(top)(tree);
  const boxes: Box[] = [];
  const keys = new Set<string>();
  placed.each((node) => {
    if (node.depth === 0 && node.children !== undefined) return;
    const frame = { x: node.x0, y: node.y0, width: node.x1 - node.x0, height: node.y1 - node.y0 };
    if (frame.width < 1 || frame.height < 1) return;
    const { cell, label, merged } = node.data;
    let key = `${cell.kind}:${cell.path}`;
    while (keys.has(key)) key += "'";
    keys.add(key);
    const inner = node.children !== undefined;
    const header = inner && headed.has(node);
    const place = inner ? { ...frame, height: header ? HEADER : 0 } : frame;
    boxes.push({ key, cell, label, merged, header, frame, place, depth: node.depth });
  });
  // `each` goes by levels; for reading aloud, what belongs together follows each other.
  return inTreeOrder(placed, boxes);
}

function inTreeOrder(placed: HierarchyRectangularNode<Item>, boxes: Box[]): Box[] {
  const byCell = new Map(boxes.map((box) => [box.cell, box]));
  const ordered: Box[] = [];
  placed.eachBefore((node) => {
    const box = byCell.get(node.data.cell);
    if (box !== undefined) ordered.push(box);
  });
  return ordered;
}

function sizeText(cell: Cell): string {
  if (cell.kind === "alias") return "tied, counted at its other name";
  return bytes(cell.bytes);
}

function nameOf(box: Box, colors: Palette): string {
  const { cell } = box;
  const what = cell.path === "" ? box.label : cell.path;
  if (cell.kind === "node") {
    return `${what}, ${sizeText(cell)}, ${whole(cell.leaves)} leaves${cell.text === "" ? "" : `, ${cell.text}`}`;
  }
  if (cell.kind === "more") return `${whole(cell.leaves)} small leaves in ${what}, ${sizeText(cell)}`;
  return `${what}, ${sizeText(cell)}, ${cell.text}, ${colors.text(cell.value)}`;
}

/** The label that fits, or nothing. */
function labelFor(box: Box, sign: string): string {
  const { width, height } = box.place;
  if (height < 14 || width < 18) return "";
  const label = box.cell.kind === "more" ? `+${whole(box.cell.leaves)}` : sign + box.label;
  if (label.length * LETTER + 8 <= width) return label;
  if (box.cell.kind === "alias" && width >= 30) return "tied";
  // Of "q_proj.weight", "q_proj" says more.
  const dot = box.merged.length > 0 ? label.lastIndexOf(".") : -1;
  const first = dot < 0 ? label : label.slice(0, dot);
  return first.length * LETTER + 8 <= width || width >= 48 ? first : "";
}

/**
 * The rectangles are elements that are made and moved by hand: there may be 1,500 of them, and when news arrive only their
 * colors change. Elements are kept as long as their cell is shown, so that focus stays where it is. All of them at once
 * would take longer than a frame, so they are drawn in slices.
 */
class Cells {
  readonly boxes = new Map<string, { box: Box; button: HTMLElement | null; frame: HTMLElement | null }>();
  readonly byElement = new WeakMap<Element, Box>();
  current: string | null = null; // the key of the one cell that Tab reaches
  private next: Element | null = null; // the element before which the next one has its place
  private pending = 0;

  constructor(readonly root: HTMLElement) {}

  show(boxes: Box[], colors: Palette, total: number, ready: () => void): void {
    cancelAnimationFrame(this.pending);
    // Computing a large map took its time already: drawing begins with the next frame.
    if (boxes.length > 300) this.pending = requestAnimationFrame(() => this.begin(boxes, colors, total, ready));
    else this.begin(boxes, colors, total, ready);
  }

  private begin(boxes: Box[], colors: Palette, total: number, ready: () => void): void {
    const wanted = new Set(boxes.map((box) => box.key));
    for (const [key, old] of this.boxes) {
      if (wanted.has(key)) continue;
      old.button?.remove();
      old.frame?.remove();
      this.boxes.delete(key);
    }
    if (this.current !== null && !wanted.has(this.current)) this.current = null;
    this.next = this.root.firstElementChild;
    let done = 0;
    const slice = () => {
      const start = performance.now();
      while (done < boxes.length && (done % 8 !== 0 || performance.now() - start < SLICE)) {
        this.put(boxes[done]!, colors, total);
        done += 1;
      }
      if (done < boxes.length) this.pending = requestAnimationFrame(slice);
      else ready();
    };
    slice();
  }

  stop(): void {
    cancelAnimationFrame(this.pending);
  }

  private put(box: Box, colors: Palette, total: number): void {
    const isNode = box.place !== box.frame;
    const held = this.boxes.get(box.key) ?? { box, button: null, frame: null };
    const moved = held.box !== box || held.box.place !== box.place || (held.button === null && held.frame === null);
    held.box = box;
    this.boxes.set(box.key, held);
    if (isNode) {
      held.frame ??= document.createElement("div");
      set(held.frame, "class", `map-frame map-frame-${box.depth % 2}`);
      if (moved) move(held.frame, box.frame);
      this.insert(held.frame);
    } else held.frame = this.remove(held.frame);
    if (isNode && !box.header) {
      held.button = this.remove(held.button);
      return;
    }
    held.button ??= this.makeCell();
    this.byElement.set(held.button, box);
    if (moved) move(held.button, box.place);
    this.fill(held.button, box, colors, total);
    this.insert(held.button);
    if (this.current === null || this.boxes.get(this.current)?.button == null) {
      this.current = box.key;
      held.button.setAttribute("tabindex", "0");
    }
  }

  private insert(element: Element): void {
    if (element === this.next) this.next = element.nextElementSibling;
    else this.root.insertBefore(element, this.next);
  }

  private remove(element: Element | null): null {
    if (element !== null && element === this.next) this.next = element.nextElementSibling;
    element?.remove();
    return null;
  }

  private makeCell(): HTMLElement {
    const button = document.createElement("button");
    button.type = "button";
    button.tabIndex = -1;
    button.dataset["testid"] = "map-cell";
    return button;
  }

  private fill(button: HTMLElement, box: Box, colors: Palette, total: number): void {
    const { cell } = box;
    const alias = cell.kind === "alias";
    const paint = box.header || alias ? null : cell.kind === "more" ? colors.small : colors.of(cell.value);
    let classes = `map-cell map-${cell.kind}`;
    if (box.header) classes += " map-header";
    if (alias || paint?.hatched) classes += " map-hatched";
    set(button, "class", classes);
    set(button, "data-path", cell.path);
    set(button, "data-kind", cell.kind);
    set(button, "data-value", cell.value === null ? "" : String(cell.value));
    set(button, "aria-label", nameOf(box, colors));
    button.style.backgroundColor = paint === null ? "" : paint.fill;
    button.style.color = paint === null ? "" : paint.ink;
    const { width, height } = box.place;
    const label = labelFor(box, paint === null ? "" : colors.sign(cell.value));
    let size = "";
    if (box.header) size = width > box.label.length * LETTER + 74 ? bytes(cell.bytes) : "";
    else if (alias) size = height >= 34 && width >= 32 && label !== "tied" ? "tied" : "";
    else if (height >= 34 && width >= 56) {
      size = width >= 130 && total > 0 ? `${bytes(cell.bytes)} · ${percent(cell.bytes / total)}` : bytes(cell.bytes);
    }
    line(button, 0, "map-name", label);
    line(button, 1, "map-size", size);
  }

  /** The nearest cell in a direction; those that face this one come before those that are shifted. */
  neighbour(from: Box, dx: number, dy: number): string | null {
    const start = from.place;
    let best: string | null = null;
    let least = Infinity;
    for (const [key, { box, button }] of this.boxes) {
      if (button === null || box === from) continue;
      const place = box.place;
      const ahead =
        dx > 0 ? place.x - (start.x + start.width)
        : dx < 0 ? start.x - (place.x + place.width)
        : dy > 0 ? place.y - (start.y + start.height)
        : start.y - (place.y + place.height);
      if (ahead < -2) continue;
      const [low, high, start0, start1] =
        dx !== 0
          ? [place.y, place.y + place.height, start.y, start.y + start.height]
          : [place.x, place.x + place.width, start.x, start.x + start.width];
      const apart = Math.max(0, low - start1 + 1, start0 - high + 1);
      const shift = Math.abs((low + high) / 2 - (start0 + start1) / 2);
      const distance = Math.max(0, ahead) + apart * 8 + shift * 0.05;
      if (distance < least) {
        least = distance;
        best = key;
      }
    }
    return best;
  }

  reach(key: string, focus: boolean): void {
    const now = this.boxes.get(key)?.button;
    if (now === undefined || now === null) return;
    if (this.current !== null) this.boxes.get(this.current)?.button?.setAttribute("tabindex", "-1");
    this.current = key;
    now.setAttribute("tabindex", "0");
    if (focus) now.focus({ preventScroll: true });
  }
}

// Writing an attribute costs even if it stays the same, and most of the time most of them do.
function set(element: Element, name: string, value: string): void {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}
/** A line of text of a cell. Most cells are too small for any, and have no elements for it. */
function line(button: HTMLElement, index: number, name: string, value: string): void {
  while (value !== "" && button.children.length <= index) {
    const made = document.createElement("span");
    made.dir = "ltr";
    button.append(made);
  }
  const element = button.children[index];
  if (element === undefined) return;
  set(element, "class", name);
  if (element.textContent !== value) element.textContent = value;
}
function move(element: HTMLElement, place: Place): void {
  element.style.marginLeft = `${place.x}px`;
  element.style.marginTop = `${place.y}px`;
  element.style.width = `${place.width}px`;
  element.style.height = `${place.height}px`;
}

interface Line {
  from: Box;
  to: Box;
  op: string;
}

/** The drawn ends of ties. An end that is not shown is replaced by the node or the small ones that contain it. */
function linesOf(map: TreeMap, boxes: Box[]): Line[] {
  const byPath = new Map<string, Box>();
  for (const box of boxes) {
    for (const path of [box.cell.path, ...box.merged]) {
      // The cells "more" of a node have the path of the node: they stand for what is hidden in it.
      if (path !== "" && (!byPath.has(path) || box.cell.kind === "more")) byPath.set(path, box);
    }
  }
  for (const box of boxes) if (box.cell.kind !== "more" && box.cell.kind !== "node") byPath.set(box.cell.path, box);
  const find = (path: string): Box | null => {
    let part = path;
    while (part !== "" && part !== map.path) {
      const box = byPath.get(part);
      if (box !== undefined) return box;
      part = part.slice(0, Math.max(0, part.lastIndexOf("."), part.lastIndexOf("/"), part.lastIndexOf("[")));
    }
    return null;
  };
  const lines: Line[] = [];
  for (const link of map.links) {
    if (lines.length >= MOST_LINKS) break;
    const from = find(link.from);
    const to = find(link.to);
    if (from !== null && to !== null && from !== to) lines.push({ from, to, op: link.op });
  }
  return lines;
}

function center({ frame }: Box): [number, number] {
  return [frame.x + frame.width / 2, frame.y + frame.height / 2];
}

function curve(line: Line): string {
  const [x0, y0] = center(line.from);
  const [x1, y1] = center(line.to);
  const bend = Math.min(0.18, 90 / Math.max(1, Math.hypot(x1 - x0, y1 - y0)));
  return `M${x0} ${y0}Q${(x0 + x1) / 2 + (y1 - y0) * bend} ${(y0 + y1) / 2 - (x1 - x0) * bend} ${x1} ${y1}`;
}

interface Tip {
  key: string;
  x: number;
  y: number;
}

export function MapView(props: {
  source: Source;
  version: number;
  path: string;
  color: Color;
  onPath(path: string): void;
  onColor(color: Color): void;
  onOpen(path: string): void;
}) {
  const { source, path, color, onPath, onColor, onOpen } = props;
  const version = useCalm(props.version);
  const theme = useTheme();
  const answer = useAnswer(() => source.map(path, color), `${color}\n${path}`, version);
  // The map before stays until the next one is there.
  const last = useRef<TreeMap | null>(null);
  if (answer.value !== null) last.current = answer.value;
  const map = last.current;

  const [areaRef, width, height] = useSize<HTMLDivElement>();
  const [layer, setLayer] = useState<HTMLDivElement | null>(null);
  const cells = useMemo(() => (layer === null ? null : new Cells(layer)), [layer]);
  const places = useRef(new Map<Color, Map<string, number>>());
  const [tip, setTip] = useState<Tip | null>(null);
  const focusNext = useRef<{ from: string } | null>(null);
  const drawn = useRef<{ path: string; boxes: Box[]; width: number; height: number } | null>(null);

  const colors = useMemo(() => {
    if (map === null) return null;
    let remembered = places.current.get(map.color);
    if (remembered === undefined) places.current.set(map.color, (remembered = new Map()));
    return palette(map, theme, remembered);
  }, [map, theme]);
  const boxes = useMemo(() => (map === null || width < 20 || height < 20 ? [] : boxesOf(map, width, height)), [map, width, height]);
  const lines = useMemo(() => (map === null ? [] : linesOf(map, boxes)), [map, boxes]);

  useLayoutEffect(() => {
    if (cells === null || colors === null || map === null || layer === null) return;
    const ready = () => {
      const asked = focusNext.current;
      if (asked === null || asked.from === map.path) return;
      focusNext.current = null;
      const back = boxes.find((box) => box.cell.path === asked.from || box.merged.includes(asked.from));
      const goal = (back !== undefined && cells.boxes.get(back.key)?.button ? back.key : null) ?? cells.current;
      if (goal !== null) cells.reach(goal, true);
    };
    cells.show(boxes, colors, map.cell.bytes, ready);
    const before = drawn.current;
    drawn.current = { path: map.path, boxes, width, height };
    if (before !== null && before.path !== map.path) {
      setTip(null);
      zoomInto(layer, before, drawn.current);
    }
  }, [cells, boxes, colors]);
  useEffect(() => () => cells?.stop(), [cells]);

  const boxOf = (target: EventTarget | null): Box | null => {
    const button = target instanceof Element ? target.closest(".map-cell") : null;
    return button === null || cells === null ? null : (cells.byElement.get(button) ?? null);
  };
  const zoom = useCallback(
    (to: string) => {
      // The button that was pressed is about to go away: the focus moves on to the new map.
      if (layer?.closest(".map")?.contains(document.activeElement)) focusNext.current = { from: last.current?.path ?? "" };
      onPath(to);
    },
    [layer, onPath],
  );
  const press = (box: Box) => {
    const { kind, path: goal } = box.cell;
    if (kind === "leaf" || kind === "alias") onOpen(goal);
    else if (goal !== map?.path) zoom(goal);
  };
  const out = (): boolean => {
    const crumbs = map?.crumbs ?? [];
    const above = crumbs[crumbs.length - 2];
    if (above === undefined) return false;
    zoom(above.path);
    return true;
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey || cells === null) return;
    const box = boxOf(event.target);
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    let goal: string | null = null;
    if (step !== undefined && box !== null) goal = cells.neighbour(box, step[0]!, step[1]!);
    else if (event.key === "Home" || event.key === "End") {
      const keys = [...cells.boxes].filter(([, held]) => held.button !== null).map(([key]) => key);
      goal = (event.key === "Home" ? keys[0] : keys[keys.length - 1]) ?? null;
    } else if (event.key === "Escape" || event.key === "Backspace") {
      if (tip !== null && event.key === "Escape") setTip(null);
      if (!out()) return;
      event.stopPropagation();
    } else return;
    event.preventDefault();
    if (goal !== null) cells.reach(goal, true);
  };
  const point = (event: PointerEvent) => {
    const box = boxOf(event.target);
    if (box === null || event.pointerType === "touch") setTip(null);
    else setTip({ key: box.key, x: event.clientX, y: event.clientY });
  };
  const focused = (event: FocusEvent) => {
    const box = boxOf(event.target);
    if (box === null || cells === null) return;
    cells.reach(box.key, false);
    if (!(event.target as Element).matches(":focus-visible")) return;
    const rect = (event.target as Element).getBoundingClientRect();
    setTip({ key: box.key, x: rect.left + Math.min(rect.width / 2, 120), y: rect.bottom - Math.min(8, rect.height / 2) });
  };
  useEffect(() => {
    if (tip === null) return undefined;
    const hide = () => setTip(null);
    addEventListener("scroll", hide, { capture: true, passive: true });
    return () => removeEventListener("scroll", hide, { capture: true });
  }, [tip === null]);

  const active = tip === null ? null : (cells?.boxes.get(tip.key)?.box ?? null);
  // The pointer moves often, these change rarely: the same objects are not compared again.
  const linesView = useMemo(
    () => lines.length > 0 && <Lines lines={lines} active={active} width={width} height={height} />,
    [lines, active, width, height],
  );
  const legendView = useMemo(
    () => colors !== null && map !== null && <LegendView colors={colors} ties={countAliases(map.cell) > 0} map={map} />,
    [colors, map],
  );
  const crumbs = map?.crumbs ?? [];
  const here = crumbs[crumbs.length - 1];
  const total = map?.cell.bytes ?? 0;
  return (
    <section class="map" aria-label="Map of bytes" data-testid="map">
      <div class="map-bar">
        <nav class="map-crumbs" aria-label="Where the map is" data-testid="map-crumbs">
          <ol>
            {crumbs.map((crumb, index) => (
              <li key={crumb.path}>
                {index === crumbs.length - 1 ? (
                  <span aria-current="location" dir="ltr" title={crumb.name}>{crumb.name || "all"}</span>
                ) : (
                  <button type="button" dir="ltr" title={crumb.name} onClick={() => zoom(crumb.path)}>{crumb.name || "all"}</button>
                )}
              </li>
            ))}
          </ol>
          {map !== null && <span class="map-total">{bytes(total)}</span>}
        </nav>
        <fieldset class="map-colors" data-testid="map-color">
          <legend>Color by</legend>
          {(map?.colors ?? [color]).map((name) => (
            <label key={name}>
              <input type="radio" name="map-color" value={name} checked={name === color} onChange={() => onColor(name)} />
              <span>{COLOR_NAMES[name] ?? name}</span>
            </label>
          ))}
        </fieldset>
      </div>
      {answer.error !== null && (
        <p class="map-error" role="alert">
          <span dir="ltr">{answer.error}</span> <button type="button" onClick={answer.again}>Try again</button>
          {path !== "" && <> <button type="button" onClick={() => onPath("")}>Show everything</button></>}
        </p>
      )}
      <p class="map-hidden" id="map-help">
        Arrow keys move between rectangles, Enter opens a leaf or zooms into a node, Backspace zooms out.
      </p>
      <p class="map-hidden" aria-live="polite">
        {map === null ? "" : `Map of ${here?.path || "everything"}, ${bytes(total)}, colored by ${COLOR_NAMES[map.color] ?? map.color}`}
      </p>
      <div class="map-area" ref={areaRef} aria-busy={answer.waiting} data-testid="map-area">
        <div
          class="map-layer"
          ref={setLayer}
          role="group"
          aria-label="Rectangles by bytes"
          aria-describedby="map-help"
          onClick={(event) => {
            const box = boxOf(event.target);
            if (box !== null) press(box);
          }}
          onKeyDown={onKeyDown}
          onPointerMove={point}
          onPointerLeave={() => setTip(null)}
          onFocusIn={focused}
          onFocusOut={() => setTip(null)}
        />
        {linesView}
        {map === null && answer.error === null && <p class="map-empty">Loading the map …</p>}
        {map !== null && width > 0 && boxes.length === 0 && (
          <p class="map-empty" data-testid="map-empty">
            {map.cell.leaves > 0 ? "No bytes below this node: the sizes of its leaves are 0 or not known." : "No bytes below this node."}
          </p>
        )}
      </div>
      {legendView}
      {tip !== null && active !== null && colors !== null && map !== null && (
        <Tooltip tip={tip} box={active} colors={colors} map={map} />
      )}
    </section>
  );
}

/** A short movement from where the node was, or to where it is now. */
function zoomInto(layer: HTMLElement, before: { path: string; boxes: Box[] }, after: { path: string; boxes: Box[]; width: number; height: number }): void {
  if (calmMotion()) return;
  const holds = (path: string) => (box: Box) => box.cell.kind === "node" && (box.cell.path === path || box.merged.includes(path));
  const { width, height } = after;
  const source = before.boxes.find(holds(after.path));
  const target = after.boxes.find(holds(before.path));
  let start: string | null = null;
  if (source !== undefined) {
    const { frame } = source;
    start = `translate(${frame.x}px, ${frame.y}px) scale(${frame.width / width}, ${frame.height / height})`;
  } else if (target !== undefined && target.frame.width > 0 && target.frame.height > 0) {
    const { frame } = target;
    // Small nodes would start as a few giant rectangles: limited, the direction still shows.
    const x = Math.min(4, width / frame.width);
    const y = Math.min(4, height / frame.height);
    start = `translate(${-frame.x * x}px, ${-frame.y * y}px) scale(${x}, ${y})`;
  }
  if (start === null) return;
  layer.animate([{ transform: start, opacity: 0.4 }, { transform: "none", opacity: 1 }], { duration: 180, easing: "ease-out" });
}

function Lines({ lines, active, width, height }: { lines: Line[]; active: Box | null; width: number; height: number }) {
  return (
    <svg class="map-lines" width={width} height={height} aria-hidden="true" data-testid="map-links">
      {lines.map((line, index) => {
        const [x0, y0] = center(line.from);
        const [x1, y1] = center(line.to);
        const strong = active !== null && (active.key === line.from.key || active.key === line.to.key);
        return (
          <g key={index} class={strong ? "map-line map-line-strong" : "map-line"}>
            <path class="map-line-edge" d={curve(line)} />
            <path class="map-line-core" d={curve(line)} />
            <circle cx={x0} cy={y0} r={strong ? 4 : 3} />
            <circle cx={x1} cy={y1} r={strong ? 4 : 3} />
          </g>
        );
      })}
    </svg>
  );
}

function Swatch({ entry }: { entry: LegendEntry }) {
  return <span class={entry.paint.hatched ? "map-swatch map-hatched" : "map-swatch"} style={{ backgroundColor: entry.paint.fill, color: entry.paint.ink }} />;
}

function LegendView({ colors, ties, map }: { colors: Palette; ties: boolean; map: TreeMap }) {
  const { legend } = colors;
  return (
    <div class="map-legend" role="group" aria-label={`Colors: ${COLOR_NAMES[map.color] ?? map.color}`} data-testid="map-legend">
      {legend.kind === "number" && (
        <div class="map-scale">
          <span>{legend.low}</span>
          <span class="map-scale-bar" style={{ backgroundImage: `linear-gradient(to right, ${legend.stops.join(", ")})` }} />
          <span>{legend.high}</span>
          <span class="map-scale-label" dir="ltr">{legend.label}</span>
        </div>
      )}
      <ul>
        {legend.entries.map((entry) => (
          <li key={entry.name}>
            <Swatch entry={entry} />
            <span class="map-legend-name" dir="ltr" title={entry.name}>{entry.sign}{entry.name}</span>
            {entry.bytes !== null && <span class="map-legend-bytes">{bytes(entry.bytes)}</span>}
          </li>
        ))}
        {ties && (
          <li>
            <span class="map-swatch map-swatch-tie map-hatched" />
            <span class="map-legend-name">tied: one tensor, counted once</span>
          </li>
        )}
      </ul>
    </div>
  );
}

function Tooltip({ tip, box, colors, map }: { tip: Tip; box: Box; colors: Palette; map: TreeMap }) {
  const ref = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const element = ref.current;
    if (element === null) return;
    const { width, height } = element.getBoundingClientRect();
    const left = Math.min(tip.x + 14, innerWidth - width - 8);
    const below = tip.y + 18;
    const top = below + height > innerHeight - 8 ? tip.y - height - 12 : below;
    element.style.transform = `translate(${Math.round(Math.max(8, left))}px, ${Math.round(Math.max(8, top))}px)`;
  });
  const { cell } = box;
  const links = map.links.filter((link) => link.from === cell.path || (cell.kind === "leaf" && link.to === cell.path));
  const share = map.cell.bytes > 0 ? ` · ${percent(cell.bytes / map.cell.bytes)} of what is shown` : "";
  return (
    <div class="map-tip" ref={ref} aria-hidden="true" data-testid="map-tip">
      <strong dir="ltr">{cell.kind === "more" ? `${whole(cell.leaves)} small leaves in ${cell.path || "the root"}` : cell.path || box.label}</strong>
      {cell.kind === "alias" ? <span>tied: no bytes of its own</span> : <span>{bytes(cell.bytes)}{share}</span>}
      {cell.text !== "" && <span dir="ltr">{cell.text}</span>}
      {cell.kind === "node" ? <span>{whole(cell.leaves)} leaves</span> : cell.kind !== "alias" && <span dir="ltr">{colors.text(cell.value)}</span>}
      {links.slice(0, 4).map((link) => (
        <span class="map-tip-tie" dir="ltr" key={`${link.from}>${link.to}`}>
          {link.from === cell.path ? `the same tensor as ${link.to}` : `also named ${link.from}`}
          {link.op === "same" ? "" : ` (${link.op})`}
        </span>
      ))}
      {links.length > 4 && <span>and {whole(links.length - 4)} more names</span>}
    </div>
  );
}
