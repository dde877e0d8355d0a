// Light, dark, or as the system has it. What people choose is kept where the browser allows it.
import { useEffect, useState } from "preact/hooks";

/** A file opened from disk, or a browser with strict settings, has no storage and raises. */
export function stored(name: string): string | null {
  try {
    return localStorage.getItem(`leafwise-${name}`);
  } catch {
    return null;
  }
}

export function store(name: string, value: string): void {
  try {
    localStorage.setItem(`leafwise-${name}`, value);
  } catch {
    // It lasts until the page is closed.
  }
}

type Theme = "auto" | "light" | "dark";
const DARK = "(prefers-color-scheme: dark)";

function apply(theme: Theme): void {
  const isDark = theme === "dark" || (theme === "auto" && matchMedia(DARK).matches);
  document.documentElement.dataset["theme"] = isDark ? "dark" : "light";
}

function chosen(): Theme {
  const theme = stored("theme");
  return theme === "light" || theme === "dark" ? theme : "auto";
}

/** Before the first drawing, so that nothing flashes. */
export function applyChosenTheme(): void {
  apply(chosen());
}

export function ThemeChoice() {
  const [theme, setTheme] = useState<Theme>(chosen);
  useEffect(() => {
    apply(theme);
    const media = matchMedia(DARK);
    const follow = (): void => apply(theme);
    media.addEventListener("change", follow);
    return () => media.removeEventListener("change", follow);
  }, [theme]);
  return (
    <label class="choice theme">
      <span class="hidden">Theme</span>
      <select
        data-testid="theme"
        value={theme}
        onChange={(event) => {
          const next = event.currentTarget.value as Theme;
          setTheme(next);
          store("theme", next);
        }}
      >
        <option value="auto">Auto</option>
        <option value="light">Light</option>
        <option value="dark">Dark</option>
      </select>
    </label>
  );
}
