// What the page shows, as the part of the address after "#": #/tree?leaf=layers.0.weight&q=q_proj&sort=bytes
//
// People edit and share addresses, so each value that is unknown or broken counts as absent.
import type { Color, ViewName } from "./types";

export interface State {
  view: ViewName;
  leaf: string | null;
  query: string;
  sort: string; // "" for the order of the view itself
  descending: boolean;
  depth: number | null; // of the tree; null until somebody chooses one
  toggled: number[];
  node: string; // of the map
  color: Color;
  level: string; // of findings
  code: string;
  kind: string; // of differences
  status: string; // of the plan
  line: number; // the first line on the screen
}

const VIEWS: ViewName[] = ["tree", "map", "stats", "findings", "diff", "plan"];
const COLORS: Color[] = ["dtype", "role", "health", "magnitude", "change"];
const LEVELS = ["error", "warning", "note"];
const LONGEST = 10_000; // characters of a path or query
const MOST_TOGGLED = 1_000;

export const EMPTY: State = {
  view: "tree", leaf: null, query: "", sort: "", descending: false, depth: null, toggled: [], node: "", color: "dtype",
  level: "", code: "", kind: "", status: "", line: 0,
};

/** Names sort from a to z at first, and figures from the largest. */
export function descendsAtFirst(sort: string): boolean {
  return !["", "tree", "path", "dtype", "shape"].includes(sort);
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text.replaceAll("+", " "));
  } catch {
    return "";
  }
}

// Encodes only what would be misread, so that paths and globs stay legible.
function encoded(text: string): string {
  return encodeURIComponent(text.replace(/\p{Surrogate}/gu, "\ufffd")) // a lone half of a pair would raise
    .replaceAll("%20", "+")
    .replace(/%(2F|3A|2C|5B|5D|7B|7D)/g, (escape) => decodeURIComponent(escape));
}

/** `first` is the view of an address that names none. */
export function parse(hash: string, first: ViewName = "tree"): State {
  const [, name = "", search = ""] = /^#?\/?([^?]*)(?:\?(.*))?$/s.exec(hash) ?? [];
  const values = new Map<string, string>();
  for (const part of search.split("&")) {
    const at = part.indexOf("=");
    if (at > 0) values.set(part.slice(0, at), decoded(part.slice(at + 1)).slice(0, LONGEST));
  }
  const text = (key: string): string => values.get(key) ?? "";
  const choice = <Choice extends string>(key: string, choices: readonly Choice[], otherwise: Choice): Choice =>
    choices.find((one) => one === values.get(key)) ?? otherwise;
  const word = (key: string): string => (/^[\w. -]{1,80}$/.test(text(key)) ? text(key) : "");
  const sort = word("sort");
  const toggled = text("toggled").split(".").filter((part) => /^\d{1,9}$/.test(part)).map(Number);
  return {
    view: VIEWS.find((one) => one === name) ?? first,
    leaf: values.has("leaf") && text("leaf") !== "" ? text("leaf") : null,
    query: text("q"),
    sort,
    descending: sort !== "" && choice("order", ["up", "down"], descendsAtFirst(sort) ? "down" : "up") === "down",
    depth: /^\d{1,2}$/.test(text("depth")) ? Number(text("depth")) : null,
    toggled: [...new Set(toggled)].slice(0, MOST_TOGGLED),
    node: text("node"),
    color: choice("color", COLORS, "dtype"),
    level: choice("level", ["", ...LEVELS], ""),
    code: word("code"),
    kind: word("kind"),
    status: word("status"),
    line: /^\d{1,9}$/.test(text("line")) ? Number(text("line")) : 0,
  };
}

export function address(state: State): string {
  const parts: string[] = [];
  const add = (name: string, value: string): void => {
    if (value !== "") parts.push(`${name}=${encoded(value)}`);
  };
  add("leaf", state.leaf ?? "");
  add("q", state.query);
  add("sort", state.sort);
  if (state.sort !== "" && state.descending !== descendsAtFirst(state.sort)) add("order", state.descending ? "down" : "up");
  if (state.view === "tree") {
    add("depth", state.depth === null ? "" : String(state.depth));
    add("toggled", state.toggled.slice(0, MOST_TOGGLED).join("."));
  }
  if (state.view === "map") {
    add("node", state.node);
    add("color", state.color === "dtype" ? "" : state.color);
  }
  if (state.view === "findings") {
    add("level", state.level);
    add("code", state.code);
  }
  if (state.view === "diff") add("kind", state.kind);
  if (state.view === "plan") add("status", state.status);
  add("line", state.line > 0 && state.view !== "map" ? String(state.line) : "");
  return `#/${state.view}${parts.length === 0 ? "" : `?${parts.join("&")}`}`;
}
