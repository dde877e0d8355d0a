// Colors of the map. The hues are those of Okabe and Ito and of Paul Tol, which people with any kind of color blindness
// can tell apart; text on a color is black or white, whichever has more contrast (always at least 4.5:1).
import type { Theme } from "./answers";
import { number } from "./format";
import type { Cell, Color, Num, TreeMap } from "./types";

export interface Paint {
  fill: string;
  ink: string; // of text on it
  hatched: boolean;
}

type Triple = [number, number, number];

function triple(hex: string): Triple {
  const code = parseInt(hex.slice(1), 16);
  return [code >> 16, (code >> 8) & 255, code & 255];
}

function luminance(hex: string): number {
  const [red, green, blue] = triple(hex).map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }) as Triple;
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

export function inkOn(hex: string): string {
  const light = luminance(hex);
  return 1.05 / (light + 0.05) > (light + 0.05) / 0.05 ? "#ffffff" : "#000000";
}

const inks = new Map<string, string>();

function paint(fill: string, hatched: boolean = false): Paint {
  let ink = inks.get(fill);
  if (ink === undefined) {
    ink = inkOn(fill);
    inks.set(fill, ink);
  }
  return { fill, ink, hatched };
}

/** A color between the stops; `share` from 0 to 1. */
function between(stops: string[], share: number): string {
  const place = Math.min(1, Math.max(0, share)) * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(place));
  const from = triple(stops[index]!);
  const to = triple(stops[index + 1]!);
  const mixed = from.map((part, i) => Math.round(part + (to[i]! - part) * (place - index)));
  return `#${mixed.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}

const CATEGORIES: Record<Theme, string[]> = {
  light: ["#5fa8d8", "#e0a030", "#2a9d7c", "#cf84b0", "#ece05a", "#1f6ea8", "#d1622b", "#7a74c9", "#a9b84a", "#8f3361"],
  dark: ["#4a95c9", "#d69a2c", "#1f8f6f", "#c278a4", "#d8cc4c", "#7fc4ee", "#cc6330", "#8f88de", "#94a53c", "#b8567f"],
};
const OTHER: Record<Theme, string> = { light: "#b4bac4", dark: "#6a7281" };
const UNKNOWN: Record<Theme, string> = { light: "#dfe2e7", dark: "#333a45" };

const HEALTH: Record<Theme, Record<string, string>> = {
  light: { error: "#b3162c", warning: "#eda72a", note: "#7fa9dc", ok: "#c3e0cd" },
  dark: { error: "#ff6f7d", warning: "#e3a13a", note: "#4f7fb8", ok: "#28503b" },
};
/** A sign in front of the name, so that the color is not the only thing that tells. */
const SIGNS: Record<string, string> = { error: "✕ ", warning: "▲ ", note: "• " };

// viridis: from dark to light, in steps that look equal.
const MAGNITUDE = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
const CHANGE: Record<Theme, string[]> = {
  light: ["#e6e9ee", "#f6cfa5", "#ea9352", "#c4501f", "#7d1d10"],
  dark: ["#2b313b", "#5d3a26", "#a8552a", "#e88f45", "#ffdca8"],
};

export interface LegendEntry {
  name: string;
  sign: string;
  paint: Paint;
  bytes: number | null;
}
export type Legend =
  | { kind: "category"; entries: LegendEntry[] }
  | { kind: "number"; stops: string[]; low: string; high: string; label: string; entries: LegendEntry[] };

export interface Palette {
  of(value: Cell["value"]): Paint;
  small: Paint; // many small leaves together
  sign(value: Cell["value"]): string;
  text(value: Cell["value"]): string;
  legend: Legend;
}

const NOT_KNOWN = "not known yet";

/**
 * The colors of a map. `places` remembers which category got which color, for as long as the map is shown, so that
 * zooming in does not change colors; the caller keeps one for each color mode.
 */
export function palette(map: TreeMap, theme: Theme, places: Map<string, number>): Palette {
  const { scale } = map;
  const unknown = paint(UNKNOWN[theme], true);
  const small = paint(UNKNOWN[theme]);
  const unknownBytes = sum(map.cell, (cell) => cell.kind !== "more" && cell.value === null);
  const smallBytes = sum(map.cell, (cell) => cell.kind === "more");
  const unknownEntry: LegendEntry[] = [];
  if (unknownBytes > 0) unknownEntry.push({ name: NOT_KNOWN, sign: "", paint: unknown, bytes: unknownBytes });
  if (smallBytes > 0) unknownEntry.push({ name: "small leaves together", sign: "", paint: small, bytes: smallBytes });
  if (scale.kind === "number") {
    const stops = map.color === "change" ? CHANGE[theme] : MAGNITUDE;
    const share = (value: number) => {
      if (scale.logarithmic && scale.low > 0) {
        if (value <= 0) return 0;
        return Math.log(value / scale.low) / (Math.log(scale.high / scale.low) || 1);
      }
      return (value - scale.low) / (scale.high - scale.low || 1);
    };
    const odd = paint(HEALTH[theme]["error"]!);
    const oddBytes = sum(map.cell, (cell) => typeof cell.value === "string");
    const oddEntry: LegendEntry[] = oddBytes > 0 ? [{ name: scale.odd, sign: SIGNS["error"]!, paint: odd, bytes: oddBytes }] : [];
    return {
      small,
      of: (value) => (value === null ? unknown : typeof value === "string" ? odd : paint(between(stops, share(value)))),
      sign: (value) => (typeof value === "string" ? SIGNS["error"]! : ""),
      text: (value) => (value === null ? NOT_KNOWN : typeof value === "string" ? scale.odd : `${scale.label} ${readable(value)}`),
      legend: {
        kind: "number",
        stops: Array.from({ length: 17 }, (_, i) => between(stops, i / 16)),
        low: number(scale.low),
        high: number(scale.high),
        label: scale.label + (scale.logarithmic ? " (logarithmic)" : ""),
        entries: [...oddEntry, ...unknownEntry],
      },
    };
  }
  const fixed = map.color === "health" ? HEALTH[theme] : {};
  const values = [...scale.values].sort((a, b) => b.bytes - a.bytes);
  const colors = CATEGORIES[theme];
  const other = paint(OTHER[theme]);
  for (const { name } of values) {
    if (!Object.hasOwn(fixed, name) && !places.has(name)) places.set(name, places.size);
  }
  const of = (value: Cell["value"]): Paint => {
    if (value === null) return unknown;
    const name = String(value);
    if (Object.hasOwn(fixed, name)) return paint(fixed[name]!);
    if (map.color === "change" && name === "same") return paint(CHANGE[theme][0]!);
    const color = colors[places.get(name) ?? colors.length];
    return color === undefined ? other : paint(color);
  };
  const entries: LegendEntry[] = [];
  let rest = 0;
  let restCount = 0;
  for (const { name, bytes } of values) {
    const color = of(name);
    if (color.fill === other.fill) {
      rest += bytes;
      restCount += 1;
    } else entries.push({ name, sign: map.color === "health" ? (SIGNS[name] ?? "") : "", paint: color, bytes });
  }
  if (map.color === "health") entries.sort((a, b) => order(a.name) - order(b.name));
  if (restCount > 0) entries.push({ name: `other (${restCount})`, sign: "", paint: other, bytes: rest });
  return {
    small,
    of,
    sign: (value) => (map.color === "health" ? (SIGNS[String(value)] ?? "") : ""),
    text: (value) => (value === null ? `${map.color} ${NOT_KNOWN}` : `${map.color}: ${value}`),
    legend: { kind: "category", entries: [...entries, ...unknownEntry] },
  };
}

function order(name: string): number {
  const index = ["error", "warning", "note", "ok"].indexOf(name);
  return index < 0 ? 9 : index;
}

function readable(value: string | number): string {
  return typeof value === "number" || ["nan", "inf", "-inf"].includes(value) ? number(value as Num) : value;
}

/** The bytes of the leaves that count. */
function sum(cell: Cell, counts: (cell: Cell) => boolean): number {
  if (cell.children !== undefined) return cell.children.reduce((total, child) => total + sum(child, counts), 0);
  return cell.kind !== "alias" && counts(cell) ? cell.bytes : 0;
}

export const COLOR_NAMES: Record<Color, string> = {
  dtype: "dtype",
  role: "role",
  health: "health",
  magnitude: "magnitude",
  change: "change",
};
