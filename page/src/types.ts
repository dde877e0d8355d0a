// What the server answers, and what an exported report contains. src/leafwise/web/ writes it.
//
// All text comes from files of other people. The server has replaced control and bidi characters by escapes; the page
// must only ever set it as text, never as markup. Numbers that JSON lacks are the strings "nan", "inf" and "-inf".

export type Num = number | "nan" | "inf" | "-inf";
export type Level = "error" | "warning" | "note";
/** The worst finding of a leaf; "ok" if it was checked and there is none; null as long as that is not known. */
export type Health = Level | "ok" | null;
export type ViewName = "tree" | "map" | "stats" | "findings" | "diff" | "plan";

export interface Total {
  name: string;
  leaves: number;
  parameters: number;
  bytes: number;
}

/** api/summary */
export interface Summary {
  title: string; // the name of the file, or the class of the model; of two, "a → b"
  kind: string; // "safetensors", "folder", "GPT2LMHeadModel" …
  version: string; // of leafwise
  names: string[]; // one, or the names of the two that are compared
  views: ViewName[];
  counts: {
    names: number;
    leaves: number;
    parameters: number;
    trainable: number;
    frozen: number;
    buffers: number;
    state: number;
    bytes: number;
    unknown: number;
  };
  ties: { path: string; names: { path: string; op: string }[] }[]; // at most 100
  tie_count: number;
  metadata: { name: string; value: string }[]; // of the file; long values are cut
  notes: string[]; // remarks to show above everything: undone ties, objects that were not loaded
  live: boolean; // a model in memory, so that `code` can be pasted; otherwise a file
  exported: boolean; // a report: nothing can be measured any more
}

/** api/totals */
export interface Totals {
  dtypes: Total[];
  roles: Total[];
}

/** A long computation. "off": not started, because much would have to be read; POST api/start?what=… starts it. */
export interface Job {
  state: "off" | "running" | "done" | "failed";
  done: number; // bytes
  total: number; // bytes
  message: string | null; // why it is off, or why it failed
}

/** api/progress?version=N answers at once. `version` grows whenever statistics, findings or the diff have news. */
export interface Progress {
  version: number;
  stats: Job;
  findings: Job;
  diff: Job | null;
  warning: string | null; // "model.safetensors has changed since it was opened …"
}

/** A few statistics of a leaf, for a line of the tree. */
export interface MiniStats {
  mean: Num;
  std: Num;
  absmax: Num;
  zeros: number;
  nan: number;
  inf: number;
  bars: number[]; // a small histogram of magnitudes, each from 0 to 1
}

/** A line of the tree. */
export interface Row {
  id: number; // its number in the whole tree, drawn completely unfolded
  kind: "node" | "leaf" | "value";
  path: string; // "" for the root
  name: string;
  depth: number;
  size: number; // elements, each leaf counted once
  bytes: number; // each leaf counted once: 0 for a further name of a tied leaf
  // nodes
  type: string | null; // the class of the module; "" in files
  leaves: number; // below it; 1 for a leaf, 0 for a plain value
  end: number; // the id after the last line below it
  open: boolean;
  // leaves
  shape: number[] | null; // null also while it is not known
  dtype: string | null;
  role: string | null;
  group: "parameter" | "buffer" | "state" | null;
  trainable: boolean | null;
  tied: { to: string; op: string } | null; // a further name: the leaf is listed and counted at `to`
  shared: number; // of a leaf with several names: how many; otherwise 0
  health: Health;
  stats: MiniStats | null;
  change: string | null; // if two are compared: the most important kind of change
  // plain values
  value: string | null;
}

export type Sort = "tree" | "path" | "bytes" | "size" | "dtype" | "std" | "absmax" | "zeros" | "change";

/**
 * api/rows. Lines of the tree, or, if sorted by anything but "tree", a flat list of leaves.
 * `depth`: nodes above this depth are open. `toggled`: ids of nodes that are folded or opened by hand.
 * With a query, only leaves that match and the nodes above them are listed, and all nodes are open unless toggled.
 */
export interface RowsAsked {
  query: string;
  sort: Sort;
  descending: boolean;
  depth: number;
  toggled: number[];
  from: number;
  count: number; // at most 500
}
export interface Rows {
  total: number; // of all lines
  from: number;
  rows: Row[];
  matches: number | null; // leaves that match the query; null without a query
  error: string | null; // what is wrong with the query
}

/** api/find?path=…&query=…&…: the number of the line of a path, to scroll to, opening what is folded above it. */
export interface Found {
  index: number | null;
  toggled: number[];
}

/** api/map?path=…&color=… : the tree below a node, pruned to what can be seen. */
export type Color = "dtype" | "role" | "health" | "magnitude" | "change";
export interface Cell {
  kind: "node" | "leaf" | "more" | "alias"; // more: many small ones; alias: a further name of a tied leaf, no bytes
  path: string;
  name: string;
  bytes: number; // of a node, the sum of its children
  value: string | number | null; // to be colored; null if it is not known yet. Nodes have none
  children?: Cell[];
  leaves: number;
  text: string; // for a tooltip: shape, dtype, type
}
export interface TreeMap {
  path: string;
  crumbs: { path: string; name: string }[]; // from the root to `path`
  cell: Cell;
  color: Color;
  colors: Color[]; // those that are available
  scale:
    | { kind: "category"; values: { name: string; bytes: number }[] }
    | { kind: "number"; low: number; high: number; label: string; logarithmic: boolean; odd: string }; // odd: what values that are not finite mean
  links: { from: string; to: string; op: string }[]; // from the path of an alias to the path of its leaf
}

/** api/leaf?path=… : facts, at once. */
export interface LeafFacts {
  path: string;
  code: string; // "model.layers[0].weight"; of a file, checkpoint['…'], for a Tree or a state dict
  label: string; // "4096×4096 bfloat16"
  shape: number[] | null;
  dtype: string;
  size: number;
  bytes: number;
  facts: { name: string; value: string }[]; // role, axes, owner, device, file, trainable …
  names: { path: string; role: string | null; owner: string; axes: string[] | null; op: string }[];
  findings: Finding[];
  change: Change | null;
  views: MatrixView[]; // how it can be drawn, the best first; empty if it cannot
  no_view: string | null; // why not
  previous: string | null; // the paths of its neighbours in the tree
  next: string | null;
  read_bytes: number; // what statistics, norms and the coarsest picture would read
  automatic: boolean; // whether to ask for them at once; otherwise after a click
}

export interface MatrixView {
  layout: "matrix" | "filters" | "strip";
  rows: number;
  columns: number;
  down: string; // what the rows are: "out", "axis 0", "filters"
  across: string;
  levels: number; // tiles exist for z = 0 (one pixel per value) to z = levels - 1 (2^z by 2^z values per pixel)
  note: string;
}

/** api/statistics?path=… */
export interface LeafStatistics {
  numbers: { name: string; value: Num }[]; // count, mean, std, min, max, l1, l2 …, in order
  // Values by powers of two: counts[i] has magnitudes from 2^(lowest+i) up to twice that, normal numbers only.
  lowest: number;
  counts: number[];
  // The bars of their own.
  zeros: number;
  subnormals: number;
  nan: number;
  posinf: number;
  neginf: number;
  skipped: string | null; // why it has no statistics
}

/** api/norms?path=… : norms along both axes of a matrix, binned. */
export interface Norms {
  axes: {
    label: string; // "norms of 4,096 rows (out)"
    count: number;
    per_bin: number; // 1 if each bin is one row
    low: Num[];
    mean: Num[];
    high: Num[];
  }[];
  note: string | null;
}

/** api/scale?path=…&layout=… : the colors of tiles. */
export interface Scale {
  limit: number; // the magnitude at both ends of the scale
  signed: boolean;
  colors: string[]; // CSS colors, from -limit to limit; from 0 if not `signed`
  nan: string;
  infinite: string;
  note: string | null; // "rows were sampled: 1 of 16"
}

// api/tile?path=…&layout=…&z=…&y=…&x=…&limit=… is a PNG of at most 256×256 pixels; smaller at the right and lower edge.
// A pixel shows the value with the largest magnitude. The header X-Sampled is set if not every value was read.

/** api/value?path=…&layout=…&row=…&column=… */
export interface Value {
  index: number[] | null; // null in a gap between filters
  text: string;
}

export interface Finding {
  code: string;
  level: Level;
  path: string; // of a leaf; "" for the whole tree
  message: string;
  leaf: boolean; // whether `path` can be opened
}
/** api/findings?level=…&code=…&from=…&count=… */
export interface Findings {
  job: Job;
  total: number; // with this level and code
  from: number;
  rows: Finding[];
  levels: { error: number; warning: number; note: number };
  codes: { code: string; level: Level; count: number }[];
  checked: number;
  skipped: { path: string; reason: string }[]; // at most 100
}

/** api/table?query=…&sort=…&descending=…&from=…&count=… : the statistics of measured leaves. */
export interface StatsRow {
  path: string;
  shape: number[] | null;
  dtype: string | null;
  numbers: Num[]; // one for each column
  bars: number[];
}
export interface StatsTable {
  job: Job;
  columns: { name: string; heading: string; form: "count" | "number" | "share" }[];
  total: number;
  from: number;
  rows: StatsRow[];
  sums: { name: string; row: StatsRow }[]; // the total, of each section
  skipped: { path: string; reason: string }[]; // at most 100
  error: string | null; // what is wrong with the query
}

export interface Change {
  kinds: string[]; // the most important first: removed added unknown changed reshaped transposed cast untied tied renamed same
  path: string;
  other: string | null;
  dtype: string | null;
  other_dtype: string | null;
  shape: number[] | null;
  other_shape: number[] | null;
  relative_l2: Num | null;
  cosine: Num | null;
  largest: Num | null;
  share: number | null; // of values that changed
  values: [string, string] | null; // of a plain value
  notes: string[];
  leaf: boolean; // whether `path` can be opened (it is in the first tree)
}
/** api/diff?kind=…&query=…&sort=tree|change&descending=…&from=…&count=… . Without `kind`, all but "same". */
export interface Diff {
  job: Job;
  names: string[];
  same: boolean;
  values: boolean; // false: only names, shapes and dtypes were compared so far
  counts: { kind: string; count: number }[];
  total: number;
  from: number;
  rows: Change[];
  notes: string[];
  error: string | null;
}

/** api/plan?status=…&query=…&from=…&count=… : what loading the second into the first would do. */
export interface PlanRow {
  status: string; // "loads", "kept", or a kind of problem: "missing", "unexpected", "shape" …
  path: string; // in the model that is loaded into
  source: string | null;
  how: string; // "copy", "cast to float32", "transpose" …
  shape: number[] | null;
  dtype: string | null;
  message: string | null;
  leaf: boolean;
}
export interface Plan {
  names: string[]; // into, from
  holds: boolean; // whether lw.load would do it
  coverage: number; // share of the parameters that get a value
  counts: { status: string; count: number }[];
  total: number;
  from: number;
  rows: PlanRow[];
  notes: string[];
  proposals: string[]; // possible renames
  error: string | null; // of the query, or why there is no plan
}

/** What the page reads from: the server, or the data in an exported report. Answers with an error raise `Refused`. */
export interface Source {
  summary(): Promise<Summary>;
  totals(): Promise<Totals>;
  progress(version: number): Promise<Progress>;
  /** "again" measures a model in memory once more. */
  start(what: "stats" | "findings" | "diff" | "again"): Promise<void>;
  rows(asked: RowsAsked): Promise<Rows>;
  find(path: string, asked: RowsAsked): Promise<Found>;
  map(path: string, color: Color): Promise<TreeMap>;
  leaf(path: string): Promise<LeafFacts>;
  statistics(path: string): Promise<LeafStatistics>;
  norms(path: string): Promise<Norms | null>;
  scale(path: string, layout: string): Promise<Scale>;
  /** The URL of a tile; null if there is none in this report. */
  tile(path: string, layout: string, z: number, y: number, x: number, limit: number): string | null;
  value(path: string, layout: string, row: number, column: number): Promise<Value>;
  findings(level: string, code: string, from: number, count: number): Promise<Findings>;
  table(query: string, sort: string, descending: boolean, from: number, count: number): Promise<StatsTable>;
  diff(kind: string, query: string, sort: string, descending: boolean, from: number, count: number): Promise<Diff>;
  plan(status: string, query: string, from: number, count: number): Promise<Plan>;
}
