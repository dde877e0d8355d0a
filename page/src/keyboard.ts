// Keys: those of the whole page, and those that move in a list.

function writes(target: EventTarget | null): boolean {
  return target instanceof HTMLElement
    && (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName));
}

/** "/" and Escape, unless something nearer to the focus has used them. Returns what removes them again. */
export function listenToPage(actions: { search(): void; close(): void }): () => void {
  const listener = (event: KeyboardEvent): void => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/" && !writes(event.target)) {
      event.preventDefault();
      actions.search();
    } else if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
      actions.close();
    }
  };
  document.addEventListener("keydown", listener);
  return () => document.removeEventListener("keydown", listener);
}

/** Where a key moves to from line `at` of `total`, with `page` lines on the screen; null if it is no such key. */
export function moved(key: string, at: number, total: number, page: number): number | null {
  const targets: Record<string, number> = {
    ArrowDown: at + 1,
    ArrowUp: at - 1,
    PageDown: at + Math.max(1, page - 1),
    PageUp: at - Math.max(1, page - 1),
    Home: 0,
    End: total - 1,
  };
  if (!Object.hasOwn(targets, key) || total === 0) return null;
  return Math.min(total - 1, Math.max(0, targets[key]!));
}
