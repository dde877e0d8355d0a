// Numbers and shapes as text.
import type { Num } from "./types";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(count: number): string {
  let unit = 0;
  let value = count;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : 1)} ${UNITS[unit]}`;
}

export function whole(count: number): string {
  return count.toLocaleString("en-US");
}

/** 7.2 B, 124 M, 4,096: a number of parameters. */
export function short(count: number): string {
  for (const [size, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"]] as const) {
    if (count >= size) return `${(count / size).toFixed(count < 10 * size ? 2 : 1)} ${letter}`;
  }
  return whole(count);
}

/** Four digits; "NaN", "∞" and "-∞" for what is not finite. */
export function number(value: Num | null): string {
  if (value === null) return "–";
  if (typeof value === "string") return value === "nan" ? "NaN" : value === "inf" ? "∞" : "-∞";
  if (value === 0) return "0";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return whole(value);
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(3) : value.toPrecision(4);
}

export function percent(share: number): string {
  if (share === 0) return "0 %";
  return share < 0.0001 ? "< 0.01 %" : `${(share * 100).toFixed(share < 0.1 ? 2 : 1)} %`;
}

export function shape(sizes: number[] | null): string {
  return sizes === null ? "?" : sizes.length === 0 ? "scalar" : sizes.join("×");
}

/** "3.1 of 13.5 GiB": both in the unit of the total. */
export function bytesOf(done: number, total: number): string {
  let unit = 0;
  let size = 1;
  while (total / size >= 1024 && unit < UNITS.length - 1) {
    size *= 1024;
    unit += 1;
  }
  const digits = unit === 0 ? 0 : 1;
  return `${(Math.min(done, total) / size).toFixed(digits)} of ${(total / size).toFixed(digits)} ${UNITS[unit]}`;
}

/** "1 leaf", "2,000 leaves". */
export function counted(count: number, one: string, many = `${one}s`): string {
  return `${whole(count)} ${count === 1 ? one : many}`;
}

/** Four digits at most, of a share that may be unknown. */
export function share(value: Num | null): string {
  return typeof value === "number" ? percent(value) : number(value);
}
