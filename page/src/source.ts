// The server as a source.
import type {
  Color, Diff, Findings, Found, LeafFacts, LeafStatistics, Norms, Plan, Progress, Rows, RowsAsked, Scale, Source, StatsTable, Summary, Totals, TreeMap, Value,
} from "./types";

/** The source has answered, and the answer is no. `status` is that of HTTP. */
export class Refused extends Error {
  status: number;

  constructor(message: string, status = 400) {
    super(message);
    this.name = "Refused";
    this.status = status;
  }
}

/** No answer at all: the server was stopped, or takes longer than `SLOWEST`. */
export class Unreachable extends Error {
  constructor(message: string) {
    super(message);
    this.name = "Unreachable";
  }
}

type Parameters = Record<string, string | number | boolean>;

const SLOWEST = 120_000; // milliseconds; statistics of a large leaf on a slow disk take a while
const SLOWEST_PROGRESS = 10_000;

function url(what: string, parameters: Parameters): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    search.set(name, typeof value === "boolean" ? (value ? "1" : "0") : String(value));
  }
  const text = search.toString();
  return text === "" ? `api/${what}` : `api/${what}?${text}`;
}

async function ask<Answer>(what: string, parameters: Parameters, method = "GET", slowest = SLOWEST): Promise<Answer> {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), slowest);
  try {
    const response = await fetch(url(what, parameters), {
      method, signal: abort.signal, cache: "no-store", credentials: "same-origin",
    });
    const text = await response.text();
    let answer: unknown = null;
    try {
      answer = text === "" ? null : JSON.parse(text);
    } catch {
      throw new Refused(`The server's answer to ${what} is not JSON (status ${response.status})`, response.status);
    }
    if (!response.ok) {
      const message = (answer as { error?: unknown } | null)?.error;
      throw new Refused(
        typeof message === "string" ? message : `The server refused ${what} (status ${response.status})`,
        response.status,
      );
    }
    return answer as Answer;
  } catch (error) {
    if (error instanceof Refused) throw error;
    throw new Unreachable(abort.signal.aborted ? "The server has not answered in time" : "The server does not answer");
  } finally {
    clearTimeout(timer);
  }
}

function spread(asked: RowsAsked): Parameters {
  return { ...asked, toggled: asked.toggled.join(",") };
}

export class HttpSource implements Source {
  totals(): Promise<Totals> {
    return ask("totals", {});
  }

  summary(): Promise<Summary> {
    return ask("summary", {});
  }
  progress(version: number): Promise<Progress> {
    return ask("progress", { version }, "GET", SLOWEST_PROGRESS);
  }
  async start(what: "stats" | "findings" | "diff"): Promise<void> {
    await ask("start", { what }, "POST");
  }
  rows(asked: RowsAsked): Promise<Rows> {
    return ask("rows", spread(asked));
  }
  find(path: string, asked: RowsAsked): Promise<Found> {
    return ask("find", { path, ...spread(asked) });
  }
  map(path: string, color: Color): Promise<TreeMap> {
    return ask("map", { path, color });
  }
  leaf(path: string): Promise<LeafFacts> {
    return ask("leaf", { path });
  }
  statistics(path: string): Promise<LeafStatistics> {
    return ask("statistics", { path });
  }
  norms(path: string): Promise<Norms | null> {
    return ask("norms", { path });
  }
  scale(path: string, layout: string): Promise<Scale> {
    return ask("scale", { path, layout });
  }
  tile(path: string, layout: string, z: number, y: number, x: number, limit: number): string {
    return url("tile", { path, layout, z, y, x, limit });
  }
  value(path: string, layout: string, row: number, column: number): Promise<Value> {
    return ask("value", { path, layout, row, column });
  }
  findings(level: string, code: string, from: number, count: number): Promise<Findings> {
    return ask("findings", { level, code, from, count });
  }
  table(query: string, sort: string, descending: boolean, from: number, count: number): Promise<StatsTable> {
    return ask("table", { query, sort, descending, from, count });
  }
  diff(kind: string, query: string, sort: string, descending: boolean, from: number, count: number): Promise<Diff> {
    return ask("diff", { kind, query, sort, descending, from, count });
  }
  plan(status: string, query: string, from: number, count: number): Promise<Plan> {
    return ask("plan", { status, query, from, count });
  }
}
