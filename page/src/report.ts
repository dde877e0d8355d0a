// An exported report: everything is in the page itself.
import { Refused } from "./source";
import type {
  Cell, Change, Color, Diff, Findings, Found, Job, LeafFacts, LeafStatistics, Norms, Num, Plan, Progress, Row, Rows, RowsAsked, Scale, Source, StatsRow, StatsTable, Summary, Totals, TreeMap, Value,
} from "./types";

export interface ReportLeaf {
  facts: LeafFacts;
  statistics: LeafStatistics | null;
  norms: Norms | null;
  scale: Scale | null;
  picture: string | null; // the whole leaf as a data: URL of a PNG, the coarsest level of views[0]
}

/** What src/leafwise/web/ writes: base64 of gzip of this as JSON. All tables have all their rows. */
export interface Report {
  summary: Summary;
  totals: Totals;
  rows: Row[]; // the whole tree unfolded; row.id is its index
  leaves: Record<string, ReportLeaf>;
  findings: Findings;
  table: StatsTable | null;
  diff: Diff | null;
  plan: Plan | null;
}

export async function openReport(text: string): Promise<ReportSource> {
  const characters = atob(text.trim());
  const packed = new Uint8Array(characters.length);
  for (let at = 0; at < characters.length; at += 1) packed[at] = characters.charCodeAt(at);
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new ReportSource(JSON.parse(await new Response(unpacked).text()) as Report);
}

const OFF: Job = { state: "off", done: 0, total: 0, message: null };
const NO_VALUES = "this report has no values of this leaf";
const NO_SEARCH = "a report can only be searched by words, globs and role:, dtype:, kind:, tied:";
const MOST_ALTERNATIVES = 1_000;
const SMALLEST_CELL = 1 / 2000; // of the whole
const MOST_ALIASES = 500;

// ---- queries

interface Searched {
  path: string;
  role?: string | null;
  dtype?: string | null;
  group?: string | null;
  tied?: unknown;
  shared?: number;
}
type Test = (one: Searched) => boolean;

function escaped(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
}

/** `{a,b}` and `{0..3}` as a list of patterns without braces. */
function alternatives(pattern: string): string[] {
  let patterns = [pattern];
  for (;;) {
    let isChanged = false;
    const next: string[] = [];
    for (const one of patterns) {
      const found = /\{([^{}]*)\}/.exec(one);
      if (!found) {
        next.push(one);
        continue;
      }
      isChanged = true;
      const range = /^(\d{1,9})\.\.(\d{1,9})$/.exec(found[1]!);
      let choices = found[1]!.split(",");
      if (range) {
        const [low, high] = [Number(range[1]), Number(range[2])];
        if (high - low >= MOST_ALTERNATIVES) throw new Refused(`{${found[1]}} has too many alternatives`);
        choices = Array.from({ length: Math.max(0, high - low + 1) }, (_, at) => String(low + at));
      }
      for (const choice of choices) next.push(one.slice(0, found.index) + choice + one.slice(found.index + found[0].length));
      if (next.length > MOST_ALTERNATIVES) throw new Refused("this glob has too many alternatives");
    }
    patterns = next;
    if (!isChanged) return patterns;
  }
}

function wordPattern(word: string): string {
  return [...word].map((character) => (character === "*" ? "[^.]*" : character === "?" ? "[^.]" : escaped(character))).join("");
}

function glob(pattern: string): RegExp {
  const sources = alternatives(pattern).map((one) => {
    const words = one.split(".").filter((word, at, all) => word !== "**" || all[at - 1] !== "**");
    let source = "";
    words.forEach((word, at) => {
      const isLast = at === words.length - 1;
      if (word === "**") source += isLast ? ".*" : "(?:[^.]+\\.)*";
      else source += wordPattern(word) + (isLast ? "" : "\\.");
    });
    // "a.**" also means a itself, so the dot before a last ** is optional.
    return source.replace(/\\\.\.\*$/, "(?:\\..*)?");
  });
  return new RegExp(`^(?:${sources.join("|")})$`, "su");
}

function filter(name: string, value: string): Test {
  const isYes = /^(yes|true|1)$/i.test(value);
  const pattern = new RegExp(`^(?:${alternatives(value).map((one) => one.split("").map((character) =>
    (character === "*" ? ".*" : character === "?" ? "." : escaped(character))).join("")).join("|")})$`, "su");
  switch (name) {
    case "role": return (one) => (value === "none" ? (one.role ?? "") === "" : pattern.test(one.role ?? ""));
    case "dtype": return (one) => pattern.test(one.dtype ?? "");
    case "kind": return (one) => pattern.test(one.group ?? "");
    case "tied": return (one) => ((one.tied !== null && one.tied !== undefined) || (one.shared ?? 0) > 1) === isYes;
    default: throw new Refused(NO_SEARCH);
  }
}

/**
 * A test for a query, by the rules of t.find; raises Refused if a report cannot answer it. `isPlace` says whether there
 * is a leaf or a node at a path: such a word means what is there and below, so that layers.1 does not find layers.10.
 */
export function compiled(query: string, isPlace: (path: string) => boolean): Test {
  const tests = query.trim().split(/\s+/).filter(Boolean).map((part): Test => {
    const found = /^([a-z_]+):(.*)$/s.exec(part);
    if (found) return filter(found[1]!, found[2]!);
    if (/[*?{}]/.test(part)) {
      const pattern = glob(part);
      return (one) => pattern.test(one.path);
    }
    if (isPlace(part)) return (one) => one.path === part || one.path.startsWith(`${part}.`);
    const isExact = part !== part.toLowerCase();
    return (one) => (isExact ? one.path : one.path.toLowerCase()).includes(part);
  });
  return (one) => tests.every((test) => test(one));
}

// ---- orders

function comparable(value: Num | null | undefined): number {
  if (value === null || value === undefined) return -Infinity;
  if (typeof value === "number") return value;
  return value === "nan" ? Infinity : value === "inf" ? Number.MAX_VALUE : -Number.MAX_VALUE;
}

/** Indexes in order of keys; those without a value come last in both directions. */
function ordered(indexes: number[], keys: (index: number) => string | number | null, descending: boolean): number[] {
  const known: { index: number; key: string | number }[] = [];
  const unknown: number[] = [];
  for (const index of indexes) {
    const key = keys(index);
    if (key === null) unknown.push(index);
    else known.push({ index, key });
  }
  const sign = descending ? -1 : 1;
  known.sort((a, b) => (a.key < b.key ? -sign : a.key > b.key ? sign : a.index - b.index));
  return known.map((one) => one.index).concat(unknown);
}

const CHANGES = ["removed", "added", "unknown", "changed", "reshaped", "transposed", "cast", "untied", "tied", "renamed", "same"];

function sortKey(row: Row, sort: string): string | number | null {
  const stats = row.stats;
  switch (sort) {
    case "path": return row.path;
    case "bytes": return row.bytes;
    case "size": return row.size;
    case "dtype": return row.dtype;
    case "std": return stats ? comparable(stats.std) : null;
    case "absmax": return stats ? comparable(stats.absmax) : null;
    case "zeros": return stats ? stats.zeros : null;
    case "change": return row.change === null ? null : -CHANGES.indexOf(row.change);
    default: return row.id;
  }
}

function window<Row>(rows: Row[], from: number, count: number): { total: number; from: number; rows: Row[] } {
  return { total: rows.length, from, rows: rows.slice(from, from + count) };
}

// ---- the source

export class ReportSource implements Source {
  private report: Report;
  private parents: Int32Array;
  private byPath = new Map<string, Row>(); // leaves take precedence over nodes with the same path
  private nodes = new Map<string, Row>();
  private kept = new Map<string, unknown>(); // the last lists, because they are asked for window by window

  constructor(report: Report) {
    this.report = report;
    const { rows } = report;
    this.parents = new Int32Array(rows.length).fill(-1);
    const above: number[] = [];
    rows.forEach((row, id) => {
      row.id = id;
      while (above.length > 0 && rows[above[above.length - 1]!]!.end <= id) above.pop();
      this.parents[id] = above.length > 0 ? above[above.length - 1]! : -1;
      if (row.kind === "node") above.push(id);
      if (row.kind === "node") this.nodes.set(row.path, row);
      if (!this.byPath.has(row.path) || (row.kind === "leaf" && this.byPath.get(row.path)!.kind !== "leaf")) this.byPath.set(row.path, row);
    });
  }

  private remembered<Answer>(key: string, make: () => Answer): Answer {
    if (this.kept.has(key)) return this.kept.get(key) as Answer;
    if (this.kept.size >= 8) this.kept.delete(this.kept.keys().next().value!);
    const made = make();
    this.kept.set(key, made);
    return made;
  }

  async totals(): Promise<Totals> {
    return this.report.totals;
  }

  async summary(): Promise<Summary> {
    return this.report.summary;
  }

  async progress(): Promise<Progress> {
    const { table, findings, diff } = this.report;
    return { version: 0, stats: table?.job ?? OFF, findings: findings.job, diff: diff?.job ?? null, warning: null };
  }

  async start(): Promise<void> {
    throw new Refused("a report cannot measure anything; open the file with leafwise view");
  }

  // -- the tree

  private compiled(query: string): Test {
    return compiled(query, (path) => (this.nodes.get(path)?.leaves ?? 0) > 0 || this.byPath.get(path)?.kind === "leaf");
  }

  /** Rows below which something matches, or all rows; and how many leaves match. All names of a leaf match together. */
  private matching(query: string): { included: Uint8Array | null; matches: number | null } {
    if (query.trim() === "") return { included: null, matches: null };
    return this.remembered(`match ${query}`, () => {
      const test = this.compiled(query);
      const leafOf = (row: Row): string => row.tied?.to ?? row.path;
      const found = new Set(this.report.rows.filter((row) => row.kind === "leaf" && test(row)).map(leafOf));
      const included = new Uint8Array(this.report.rows.length);
      let matches = 0;
      this.report.rows.forEach((row, id) => {
        if (row.kind === "node" || !(row.kind === "leaf" ? found.has(leafOf(row)) : test(row))) return;
        if (row.kind === "leaf" && row.tied === null) matches += 1;
        included[id] = 1;
        for (let above = this.parents[id]!; above >= 0 && included[above] === 0; above = this.parents[above]!) included[above] = 1;
      });
      return { included, matches };
    });
  }

  private isOpen(row: Row, asked: RowsAsked, toggled: Set<number>): boolean {
    return (asked.query.trim() !== "" || row.depth < asked.depth) !== toggled.has(row.id);
  }

  private listed(asked: RowsAsked): { ids: number[]; toggled: Set<number>; matches: number | null } {
    const key = JSON.stringify([asked.query, asked.sort, asked.descending, asked.depth, asked.toggled]);
    return this.remembered(`rows ${key}`, () => {
      const { rows } = this.report;
      const { included, matches } = this.matching(asked.query);
      const toggled = new Set(asked.toggled);
      let ids: number[] = [];
      if (asked.sort === "tree") {
        for (let id = 0; id < rows.length;) {
          const row = rows[id]!;
          const isIncluded = included === null || included[id] === 1;
          if (isIncluded) ids.push(id);
          id = row.kind === "node" && (!isIncluded || !this.isOpen(row, asked, toggled)) ? row.end : id + 1;
        }
      } else {
        rows.forEach((row, id) => {
          if (row.kind === "leaf" && row.tied === null && (included === null || included[id] === 1)) ids.push(id);
        });
        ids = ordered(ids, (id) => sortKey(rows[id]!, asked.sort), asked.descending);
      }
      return { ids, toggled, matches };
    });
  }

  async rows(asked: RowsAsked): Promise<Rows> {
    try {
      const { ids, toggled, matches } = this.listed(asked);
      const rows = ids.slice(asked.from, asked.from + asked.count).map((id) => {
        const row = this.report.rows[id]!;
        return { ...row, open: row.kind === "node" && this.isOpen(row, asked, toggled) };
      });
      return { total: ids.length, from: asked.from, rows, matches, error: null };
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      return { total: 0, from: 0, rows: [], matches: null, error: error.message };
    }
  }

  async find(path: string, asked: RowsAsked): Promise<Found> {
    const row = this.byPath.get(path);
    if (!row) return { index: null, toggled: asked.toggled };
    const toggled = new Set(asked.toggled);
    for (let above = this.parents[row.id]!; above >= 0; above = this.parents[above]!) {
      const node = this.report.rows[above]!;
      if (this.isOpen(node, asked, toggled)) continue;
      if (toggled.has(above)) toggled.delete(above);
      else toggled.add(above);
    }
    const list = [...toggled];
    try {
      const index = this.listed({ ...asked, toggled: list }).ids.indexOf(row.id);
      return { index: index < 0 ? null : index, toggled: list };
    } catch {
      return { index: null, toggled: asked.toggled };
    }
  }

  // -- the map

  private colorOf(row: Row, color: Color): string | number | null {
    switch (color) {
      case "dtype": return row.dtype;
      case "role": return row.role;
      case "health": return row.health;
      case "change": return row.change;
      case "magnitude": {
        if (!row.stats || typeof row.stats.mean !== "number" || typeof row.stats.std !== "number") return null;
        return Math.hypot(row.stats.mean, row.stats.std);
      }
    }
  }

  async map(path: string, color: Color): Promise<TreeMap> {
    const { rows } = this.report;
    const top = path === "" ? rows[0] : this.nodes.get(path) ?? this.byPath.get(path); // the root of a part has a path
    if (!top) throw new Refused(`there is no node ${path}`, 404);
    return this.remembered(`map ${color} ${top.id}`, () => {
      const colors = this.colors();
      const least = top.bytes * SMALLEST_CELL;
      const links: TreeMap["links"] = [];
      const text = (row: Row): string => (row.kind === "node"
        ? row.type ?? "" : `${row.shape === null ? "" : row.shape.length === 0 ? "scalar " : `${row.shape.join("×")} `}${row.dtype ?? ""}`);
      const cell = (row: Row): Cell => {
        if (row.kind !== "node") {
          return { kind: "leaf", path: row.path, name: row.name, bytes: row.bytes, value: this.colorOf(row, color), leaves: row.leaves, text: text(row) };
        }
        const children: Cell[] = [];
        let [restBytes, restLeaves, restCount] = [0, 0, 0];
        for (let id = row.id + 1; id < row.end; id = rows[id]!.kind === "node" ? rows[id]!.end : id + 1) {
          const child = rows[id]!;
          if (child.tied !== null) {
            if (links.length >= MOST_ALIASES) continue;
            links.push({ from: child.path, to: child.tied.to, op: child.tied.op });
            children.push({ kind: "alias", path: child.path, name: child.name, bytes: 0, value: this.colorOf(child, color), leaves: 0, text: `tied to ${child.tied.to}` });
          } else if ((child.bytes >= least && child.bytes > 0) || this.hasOnlyTied(child)) {
            children.push(cell(child));
          } else if (child.bytes > 0) {
            restBytes += child.bytes;
            restLeaves += child.leaves;
            restCount += 1;
          }
        }
        if (restBytes > 0) {
          children.push({ kind: "more", path: row.path, name: `${restCount} more`, bytes: restBytes, value: null, leaves: restLeaves, text: `${restCount} small ones` });
        }
        const sum = children.reduce((all, child) => all + child.bytes, 0);
        return { kind: "node", path: row.path, name: row.name, bytes: sum, value: null, children, leaves: row.leaves, text: text(row) };
      };
      const crumbs: TreeMap["crumbs"] = [];
      for (let id = top.id; id >= 0; id = this.parents[id]!) crumbs.unshift({ path: rows[id]!.path, name: rows[id]!.name });
      return { path, crumbs, cell: cell(top), color, colors, scale: this.scaleOf(top, color), links };
    });
  }

  /** Whether a node has no bytes of its own, but names of leaves that are counted elsewhere. */
  private hasOnlyTied(row: Row): boolean {
    if (row.kind !== "node" || row.bytes > 0) return false;
    return this.report.rows.slice(row.id + 1, Math.min(row.end, row.id + 1000)).some((below) => below.tied !== null);
  }

  private colors(): Color[] {
    return this.remembered("colors", () => {
      const { rows, totals } = this.report;
      const colors: Color[] = ["dtype"];
      if (totals.roles.length > 0) colors.push("role");
      if (rows.some((row) => row.health !== null)) colors.push("health");
      if (rows.some((row) => row.stats !== null)) colors.push("magnitude");
      if (rows.some((row) => row.change !== null)) colors.push("change");
      return colors;
    });
  }

  private scaleOf(top: Row, color: Color): TreeMap["scale"] {
    const sums = new Map<string, number>();
    let [low, high] = [Infinity, 0];
    for (let id = top.id; id < Math.max(top.end, top.id + 1); id += 1) {
      const row = this.report.rows[id]!;
      if (row.kind !== "leaf" || row.tied !== null) continue;
      const value = this.colorOf(row, color);
      if (typeof value === "string") sums.set(value, (sums.get(value) ?? 0) + row.bytes);
      else if (typeof value === "number" && value > 0) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
    if (color === "magnitude") {
      return { kind: "number", low: Number.isFinite(low) ? low : 0, high, label: "root mean square", logarithmic: true, odd: "no finite value" };
    }
    const values = [...sums].map(([name, bytes]) => ({ name, bytes })).sort((a, b) => b.bytes - a.bytes);
    return { kind: "category", values };
  }

  // -- leaves

  private recorded(path: string): ReportLeaf {
    const { leaves } = this.report;
    if (Object.hasOwn(leaves, path)) return leaves[path]!;
    const other = this.byPath.get(path)?.tied?.to;
    if (other !== undefined && Object.hasOwn(leaves, other)) return leaves[other]!;
    throw new Refused(NO_VALUES, 404);
  }

  async leaf(path: string): Promise<LeafFacts> {
    return this.recorded(path).facts;
  }

  async statistics(path: string): Promise<LeafStatistics> {
    const { statistics } = this.recorded(path);
    if (!statistics) throw new Refused(NO_VALUES, 404);
    return statistics;
  }

  async norms(path: string): Promise<Norms | null> {
    return this.recorded(path).norms;
  }

  async scale(path: string, layout: string): Promise<Scale> {
    const { scale, facts } = this.recorded(path);
    if (!scale || facts.views[0]?.layout !== layout) throw new Refused(NO_VALUES, 404);
    return scale;
  }

  tile(path: string, layout: string, z: number, y: number, x: number): string | null {
    try {
      const { picture, facts } = this.recorded(path);
      const view = facts.views[0];
      return view && view.layout === layout && z === view.levels - 1 && y === 0 && x === 0 ? picture : null;
    } catch {
      return null;
    }
  }

  async value(): Promise<Value> {
    throw new Refused(NO_VALUES, 404);
  }

  // -- tables

  private filtered<One extends { path: string }>(name: string, all: One[], query: string, also: (one: One) => boolean): One[] {
    return this.remembered(`${name} ${query}`, () => {
      const test = this.compiled(query);
      const { included } = this.matching(query);
      // Rows of tables lack most of what a query asks about; the line of the tree has it.
      return all.filter((one) => {
        const row = this.byPath.get(one.path);
        return also(one) && (included === null || (row ? included[row.id] === 1 : test(one)));
      });
    });
  }

  async findings(level: string, code: string, from: number, count: number): Promise<Findings> {
    const all = this.report.findings;
    const rows = all.rows.filter((one) => (level === "" || one.level === level) && (code === "" || one.code === code));
    return { ...all, ...window(rows, from, count) };
  }

  async table(query: string, sort: string, descending: boolean, from: number, count: number): Promise<StatsTable> {
    const all = this.report.table;
    if (!all) return { job: this.report.findings.job, columns: [], total: 0, from: 0, rows: [], sums: [], skipped: [], error: null };
    return this.answered(all, () => {
      const rows = this.filtered("table", all.rows, query, () => true);
      const column = all.columns.findIndex((one) => one.name === sort);
      if (column < 0 && sort !== "path") return window(rows, from, count);
      const key = (row: StatsRow): string | number => (column < 0 ? row.path : comparable(row.numbers[column]));
      const sorted = this.remembered(`table order ${JSON.stringify([query, sort, descending])}`, () =>
        ordered(rows.map((_, at) => at), (at) => key(rows[at]!), descending).map((at) => rows[at]!));
      return window(sorted, from, count);
    });
  }

  async diff(kind: string, query: string, sort: string, descending: boolean, from: number, count: number): Promise<Diff> {
    const all = this.report.diff;
    if (!all) throw new Refused("this report compares nothing", 404);
    return this.answered(all, () => {
      const rows = this.filtered(`diff ${kind}`, all.rows, query, (one) =>
        (kind === "" ? one.kinds[0] !== "same" : one.kinds.includes(kind)));
      if (sort !== "change") return window(descending ? [...rows].reverse() : rows, from, count);
      const key = (one: Change): number | null => (one.relative_l2 === null ? null : comparable(one.relative_l2));
      const sorted = this.remembered(`diff order ${JSON.stringify([kind, query, descending])}`, () =>
        ordered(rows.map((_, at) => at), (at) => key(rows[at]!), descending).map((at) => rows[at]!));
      return window(sorted, from, count);
    });
  }

  async plan(status: string, query: string, from: number, count: number): Promise<Plan> {
    const all = this.report.plan;
    if (!all) throw new Refused("this report has no plan", 404);
    return this.answered(all, () =>
      window(this.filtered(`plan ${status}`, all.rows, query, (one) => status === "" || one.status === status), from, count));
  }

  /** A whole table with some of its rows; or with none, and the reason why the query is refused. */
  private answered<Answer extends { error: string | null; rows: unknown[]; total: number; from: number }>(
    all: Answer, rows: () => { total: number; from: number; rows: Answer["rows"] },
  ): Answer {
    try {
      return { ...all, ...rows() };
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      return { ...all, total: 0, from: 0, rows: [], error: error.message };
    }
  }
}
