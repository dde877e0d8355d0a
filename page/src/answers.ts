// Hooks that several components share: answers of the source, news at most once a second, sizes and the theme.
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export interface Answer<T> {
  value: T | null;
  error: string | null;
  waiting: boolean;
  again(): void;
}

/**
 * Asks, and keeps the answer to the newest question only. `key` names the question: with another key, the old answer is
 * dropped at once. With another `news`, the old answer stays until the new one is there, so that nothing flickers; if
 * asking again fails, it stays, too. Without `ask`, nothing is asked.
 */
export function useAnswer<T>(ask: (() => Promise<T>) | null, key: string, news: number = 0): Answer<T> {
  const [held, setHeld] = useState<{ key: string; value: T | null; error: string | null }>({ key, value: null, error: null });
  const [tries, setTries] = useState(0);
  const latest = useRef(ask);
  latest.current = ask;
  const wanted = ask !== null;
  const running = useRef<{ key: string; dropped: boolean; renew: boolean } | null>(null);
  const start = (question: () => Promise<T>) => {
    const mine = { key, dropped: false, renew: false };
    running.current = mine;
    // A source may throw before it returns a promise; both become a failed answer.
    new Promise<T>((resolve) => resolve(question()))
      .then(
        (value) => {
          if (!mine.dropped) setHeld({ key, value, error: null });
        },
        (reason: unknown) => {
          if (mine.dropped) return;
          setHeld((old) => (old.key === key && old.value !== null ? old : { key, value: null, error: reasonText(reason) }));
        },
      )
      .then(() => {
        if (mine.dropped) return;
        running.current = null;
        if (mine.renew && latest.current !== null) start(latest.current);
      });
  };
  useEffect(() => {
    if (latest.current !== null) start(latest.current);
    return () => {
      if (running.current !== null) running.current.dropped = true;
      running.current = null;
    };
  }, [key, tries, wanted]);
  const known = useRef(news);
  useEffect(() => {
    if (known.current === news) return;
    known.current = news;
    // News that arrive faster than answers must not keep the answer from ever arriving: it is awaited first.
    if (running.current !== null) running.current.renew = true;
    else if (latest.current !== null) start(latest.current);
  }, [news]);
  const again = useCallback(() => {
    setHeld((old) => ({ ...old, error: null }));
    setTries((count) => count + 1);
  }, []);
  const current = held.key === key;
  const value = current ? held.value : null;
  const error = current ? held.error : null;
  return { value, error, waiting: wanted && value === null && error === null, again };
}

export function reasonText(reason: unknown): string {
  return reason instanceof Error && reason.message !== "" ? reason.message : String(reason);
}

/** The value, but changed at most once in `pause` milliseconds. The last change always arrives. */
export function useCalm<T>(value: T, pause: number = 1000): T {
  const [shown, setShown] = useState(value);
  const changed = useRef(0);
  useEffect(() => {
    if (Object.is(value, shown)) return undefined;
    const timer = setTimeout(() => {
      changed.current = performance.now();
      setShown(value);
    }, Math.max(0, changed.current + pause - performance.now()));
    return () => clearTimeout(timer);
  }, [value, shown, pause]);
  return shown;
}

/** The size of an element in CSS pixels, [0, 0] until it is known. */
export function useSize<E extends Element>(): [(element: E | null) => void, number, number] {
  const [size, setSize] = useState<[number, number]>([0, 0]);
  const [element, setElement] = useState<E | null>(null);
  useLayoutEffect(() => {
    if (element === null) return undefined;
    const measure = () => {
      const width = Math.floor(element.clientWidth);
      const height = Math.floor(element.clientHeight);
      setSize((old) => (old[0] === width && old[1] === height ? old : [width, height]));
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, [element]);
  return [setElement, size[0], size[1]];
}

export type Theme = "light" | "dark";

function themeNow(): Theme {
  return document.documentElement.dataset["theme"] === "dark" ? "dark" : "light";
}

/** The theme of the page. What is drawn on a canvas or gets computed colors has to be drawn again when it changes. */
export function useTheme(): Theme {
  const [theme, setTheme] = useState(themeNow);
  useEffect(() => {
    const observer = new MutationObserver(() => setTheme(themeNow()));
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    setTheme(themeNow());
    return () => observer.disconnect();
  }, []);
  return theme;
}

/** The value of a CSS variable such as "--accent". */
export function variable(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function calmMotion(): boolean {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}
