// Long lists: rows are asked for in windows, and only those on the screen are drawn.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { RefObject } from "preact";
import { Unreachable } from "./source";

interface Answered {
  total: number;
  from: number;
  rows: unknown[];
}
export type RowOf<Answer extends Answered> = Answer["rows"][number];

const WINDOW = 200;
const MOST_WINDOWS = 40;
const MOST_REQUESTS = 3;
const RETRY = 3_000; // milliseconds

/** The windows of one list. What was asked for under an old key is dropped when it arrives. */
export class Windows<Answer extends Answered> {
  total: number | null = null;
  answer: Answer | null = null; // the latest, for what it says beside the rows
  failure: string | null = null;
  loading = true; // nothing has arrived under this key yet; rows of the last key stay on the screen until then

  private key: string | null = null;
  private version = -1;
  private ask: (from: number, count: number) => Promise<Answer> = () => Promise.reject(new Error("no source"));
  private pages = new Map<number, { rows: RowOf<Answer>[]; version: number }>();
  private generation = 0;
  private flying = new Set<number>();
  private first = 0;
  private last = 0;
  private retry: ReturnType<typeof setTimeout> | undefined;
  private isPumping = false;
  private changed: () => void;

  constructor(changed: () => void) {
    this.changed = changed;
  }

  update(key: string, version: number, ask: (from: number, count: number) => Promise<Answer>): void {
    this.ask = ask;
    if (key !== this.key) {
      this.key = key;
      this.version = version;
      this.generation += 1;
      this.flying.clear();
      this.loading = true;
      this.failure = null;
    } else if (version !== this.version) {
      this.version = version;
      this.failure = null;
    } else {
      return;
    }
    this.pump();
  }

  row(index: number): RowOf<Answer> | undefined {
    return this.pages.get(Math.floor(index / WINDOW))?.rows[index % WINDOW];
  }

  want(first: number, last: number): void {
    const [from, to] = [Math.floor(Math.max(0, first) / WINDOW), Math.floor(Math.max(0, last) / WINDOW)];
    if (from === this.first && to === this.last) return;
    this.first = from;
    this.last = to;
    this.pump();
  }

  stop(): void {
    this.generation += 1;
    clearTimeout(this.retry);
    this.changed = () => {};
  }

  private needs(page: number, visible: boolean): boolean {
    if (page < 0 || this.flying.has(page)) return false;
    if (this.loading) return visible;
    if (page > 0 && this.total !== null && page * WINDOW >= this.total) return false;
    const known = this.pages.get(page);
    return known === undefined || (visible && known.version !== this.version);
  }

  private next(): number | null {
    for (let page = this.first; page <= this.last; page += 1) if (this.needs(page, true)) return page;
    for (const page of [this.last + 1, this.first - 1]) if (this.needs(page, false)) return page;
    return null;
  }

  /** After all effects of a drawing have run, so that a new key and a new place lead to one request, not two. */
  private pump(): void {
    if (this.isPumping) return;
    this.isPumping = true;
    queueMicrotask(() => {
      this.isPumping = false;
      this.request();
    });
  }

  private request(): void {
    while (this.flying.size < MOST_REQUESTS && this.failure === null) {
      const page = this.next();
      if (page === null) return;
      void this.fetch(page);
    }
  }

  private async fetch(page: number): Promise<void> {
    const { generation, version } = this;
    this.flying.add(page);
    try {
      const answer = await this.ask(page * WINDOW, WINDOW);
      if (generation !== this.generation) return;
      this.flying.delete(page);
      if (this.loading) {
        this.pages.clear();
        this.loading = false;
      }
      this.total = answer.total;
      this.answer = answer;
      this.pages.set(page, { rows: answer.rows, version });
      this.forget();
    } catch (error) {
      if (generation !== this.generation) return;
      this.flying.delete(page);
      this.failure = error instanceof Error ? error.message : String(error);
      clearTimeout(this.retry);
      if (error instanceof Unreachable) {
        this.retry = setTimeout(() => {
          this.failure = null;
          this.pump();
        }, RETRY);
      }
    }
    this.changed();
    this.pump();
  }

  private forget(): void {
    const middle = (this.first + this.last) / 2;
    while (this.pages.size > MOST_WINDOWS) {
      let farthest = -1;
      for (const page of this.pages.keys()) {
        if (farthest < 0 || Math.abs(page - middle) > Math.abs(farthest - middle)) farthest = page;
      }
      this.pages.delete(farthest);
    }
  }
}

export function useWindows<Answer extends Answered>(
  key: string, version: number, ask: (from: number, count: number) => Promise<Answer>,
): Windows<Answer> {
  const [, draw] = useState(0);
  const windows = useMemo(() => new Windows<Answer>(() => draw((count) => count + 1)), []);
  useLayoutEffect(() => windows.update(key, version, ask));
  useEffect(() => () => windows.stop(), []);
  return windows;
}

// Browsers cut elements that are taller than about 16 million pixels. Above this height, the scroll bar is scaled.
const TALLEST = 8_000_000;
const STEP = 4; // rows are added and removed in steps, not at each pixel
const SETTLED = 120; // milliseconds after the last scroll event

export interface Virtual {
  scroller: RefObject<HTMLDivElement | null>;
  width: number;
  height: number; // of the element that holds the rows
  first: number;
  last: number; // exclusive
  top: number; // where the first drawn row begins
  page: number; // rows that fit
  pool: number; // at least as many as are ever drawn: a row gets the elements of the one that many lines away
  scrolled(): void;
  show(index: number, middle?: boolean): void; // scrolls as little as needed, or to the middle if it is not visible
  to(index: number): void; // puts a line at the top
  firstVisible(): number;
}

/**
 * The rows to draw. Positions are kept in pixels of the whole list, `at`, which differ from those of the scroll bar if
 * the list is taller than an element can be. Small movements are then taken as they are, so that a turn of the wheel
 * moves by as many pixels as everywhere, and the scroll bar follows when they end; large ones are scaled.
 */
export function useVirtual(total: number, rowHeight: number, headHeight: number): Virtual {
  const scroller = useRef<HTMLDivElement>(null);
  const [size, setSize] = useState({ width: 0, height: 600 });
  const position = useRef({ at: 0, bar: 0 }).current;
  const settle = useRef<ReturnType<typeof setTimeout>>(undefined);
  const [drawn, setDrawn] = useState({ first: 0, last: 0, top: 0 });

  const body = Math.max(rowHeight, size.height - headHeight);
  const full = total * rowHeight;
  const height = Math.min(full, TALLEST);
  const scaled = full > height;
  const ratio = scaled ? (full - body) / (height - body) : 1;

  const place = (): void => {
    const first = Math.max(0, Math.floor(position.at / rowHeight / STEP) * STEP - STEP);
    const end = Math.ceil((position.at + body) / rowHeight / STEP) * STEP + STEP;
    const last = Math.min(total, end);
    const top = position.bar + first * rowHeight - position.at;
    setDrawn((old) => (old.first === first && old.last === last && old.top === top ? old : { first, last, top }));
  };
  const move = (at: number): void => {
    position.at = Math.min(Math.max(0, full - body), Math.max(0, at));
    position.bar = position.at / ratio;
    if (scroller.current) scroller.current.scrollTop = position.bar;
    place();
  };
  const scrolled = (): void => {
    const bar = Math.max(0, scroller.current?.scrollTop ?? 0);
    const delta = bar - position.bar;
    position.bar = bar;
    if (!scaled) {
      position.at = bar;
    } else {
      const isSmall = Math.abs(delta) < 3 * body;
      position.at = Math.min(full - body, Math.max(0, isSmall ? position.at + delta : bar * ratio));
      clearTimeout(settle.current);
      settle.current = setTimeout(() => {
        if (Math.abs(position.at / ratio - position.bar) > 1) move(position.at);
      }, SETTLED);
    }
    place();
  };

  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element) return undefined;
    const measure = (): void => {
      const [width, tall] = [element.clientWidth, element.clientHeight];
      setSize((old) => (old.width === width && old.height === tall ? old : { width, height: tall }));
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => {
      observer.disconnect();
      clearTimeout(settle.current);
    };
  }, []);
  // A list that got shorter moves the scroll bar without an event in some browsers.
  useLayoutEffect(scrolled, [total, rowHeight, body]);

  return {
    scroller,
    width: size.width,
    height,
    first: Math.min(drawn.first, total),
    last: Math.min(drawn.last, total),
    top: drawn.top,
    page: Math.max(1, Math.floor(body / rowHeight)),
    pool: Math.ceil(body / rowHeight) + 5 * STEP,
    scrolled,
    show(index, middle = false) {
      const [above, below] = [index * rowHeight, (index + 1) * rowHeight];
      const isVisible = above >= position.at && below <= position.at + body;
      if (isVisible) return;
      if (middle) move((above + below - body) / 2);
      else if (above < position.at) move(above);
      else move(below - body);
    },
    to: (index) => move(index * rowHeight),
    firstVisible: () => Math.floor(position.at / rowHeight),
  };
}
