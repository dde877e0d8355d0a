// The shell: header, views, the panel of the open leaf, and what the server has to say.
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { About } from "./about";
import { DiffView } from "./diff";
import { FindingsView } from "./findings";
import { bytes, counted, short, whole } from "./format";
import { JobLine, useProgress, type Start } from "./jobs";
import type { JobName } from "./jobs";
import { listenToPage } from "./keyboard";
import { LeafPanel } from "./leaf";
import { MapView } from "./map";
import { PlanView } from "./plan";
import { Search } from "./search";
import { address, EMPTY, parse } from "./state";
import type { State } from "./state";
import { Stats } from "./stats";
import { stored, store, ThemeChoice } from "./theme";
import { Tree } from "./tree";
import type { Answered } from "./tree";
import type { Progress, Source, Summary, ViewName } from "./types";

const TITLES: Record<ViewName, string> = {
  tree: "Tree", map: "Map", stats: "Statistics", findings: "Findings", diff: "Differences", plan: "Load plan",
};
const SEARCHED: ViewName[] = ["tree", "stats", "diff", "plan"];
const NARROW = "(max-width: 899px)";

/** The state in the address. Views and leaves get an entry in the history; typing and folding do not. */
function useAddress(first: ViewName): [State, (part: Partial<State>, push?: boolean) => void] {
  const [state, setState] = useState(() => parse(location.hash, first));
  const latest = useRef(state);
  useEffect(() => {
    const read = (): void => {
      const next = parse(location.hash, first);
      if (address(next) === address(latest.current)) return;
      latest.current = next;
      setState(next);
    };
    addEventListener("popstate", read);
    addEventListener("hashchange", read);
    return () => {
      removeEventListener("popstate", read);
      removeEventListener("hashchange", read);
    };
  }, []);
  const change = useCallback((part: Partial<State>, push = false): void => {
    const next = { ...latest.current, ...part };
    const isNew = address(next) !== address(latest.current);
    latest.current = next;
    setState(next);
    if (!isNew) return;
    try {
      if (push) history.pushState(null, "", address(next));
      else history.replaceState(null, "", address(next));
    } catch {
      // Browsers limit how often this may be called; the page works without it.
    }
  }, []);
  return [state, change];
}

function useMedia(query: string): boolean {
  const [matches, setMatches] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const media = matchMedia(query);
    const read = (): void => setMatches(media.matches);
    media.addEventListener("change", read);
    return () => media.removeEventListener("change", read);
  }, [query]);
  return matches;
}

interface Badge {
  text: string;
  meaning: string;
  look: string;
}

function useBadges(source: Source, summary: Summary, version: number): Partial<Record<ViewName, Badge>> {
  const [badges, setBadges] = useState<Partial<Record<ViewName, Badge>>>({});
  useEffect(() => {
    let isCurrent = true;
    const put = (view: ViewName, badge: Badge | undefined): void => {
      if (isCurrent) setBadges((old) => ({ ...old, [view]: badge }));
    };
    if (summary.views.includes("findings")) {
      source.findings("", "", 0, 1).then(({ levels }) => {
        const [count, level] = levels.error > 0 ? [levels.error, "error"] : [levels.warning, "warning"];
        put("findings", count === 0 ? undefined : { text: short(count), meaning: counted(count, level), look: level });
      }, () => {});
    }
    if (summary.views.includes("diff")) {
      source.diff("", "", "tree", false, 0, 1).then(({ counts }) => {
        const count = counts.reduce((sum, one) => sum + (one.kind === "same" ? 0 : one.count), 0);
        put("diff", { text: short(count), meaning: counted(count, "difference"), look: "" });
      }, () => {});
    }
    return () => {
      isCurrent = false;
    };
  }, [source, summary, version]);
  return badges;
}

function Counts(props: { summary: Summary }) {
  const { counts, tie_count: ties } = props.summary;
  const groups = [
    counts.trainable > 0 ? `${whole(counts.trainable)} trainable` : "",
    counts.frozen > 0 ? `${whole(counts.frozen)} frozen` : "",
    counts.buffers > 0 ? `${whole(counts.buffers)} in buffers` : "",
    counts.state > 0 ? `${whole(counts.state)} in optimizer state` : "",
  ].filter(Boolean).join(", ");
  return (
    <ul class="counts" aria-label="Size">
      <li title={`${whole(counts.parameters)} parameters${groups ? `: ${groups}` : ""}`}><b>{short(counts.parameters)}</b> parameters</li>
      <li title={`${whole(counts.bytes)} bytes`}><b>{bytes(counts.bytes)}</b></li>
      <li><b>{whole(counts.leaves)}</b> {counts.leaves === 1 ? "leaf" : "leaves"}</li>
      {ties > 0 && <li><b>{whole(ties)}</b> {ties === 1 ? "tie" : "ties"}</li>}
      {counts.unknown > 0 && <li title="Their shapes are not known yet"><b>{whole(counts.unknown)}</b> unknown</li>}
    </ul>
  );
}

function Notes(props: { notes: string[] }) {
  const [isHidden, hide] = useState(false);
  const { notes } = props;
  if (isHidden || notes.length === 0) return null;
  return (
    <div class="notes" role="note">
      {notes.length === 1 ? <p dir="ltr">{notes[0]}</p> : (
        <details>
          <summary><span dir="ltr">{notes[0]}</span> <span class="dim">and {counted(notes.length - 1, "more note")}</span></summary>
          <ul>{notes.slice(1).map((note, at) => <li key={at} dir="ltr">{note}</li>)}</ul>
        </details>
      )}
      <button type="button" onClick={() => hide(true)}>Hide</button>
    </div>
  );
}

function StatusBar(props: {
  progress: Progress | null; summary: Summary; failure: string | null; start: Start;
}) {
  const { progress, summary, start } = props;
  const canStart = !summary.exported;
  let jobs = null;
  let said = "";
  if (progress) {
    const { stats, findings, diff } = progress;
    const isOff = (name: JobName): boolean => progress[name]?.state === "off";
    // Findings need what statistics read, so that one offer is enough; their view has a button of its own.
    const shown = (["stats", "findings", "diff"] as const).filter((name) =>
      progress[name] && !(name === "findings" && isOff("findings") && (isOff("stats") || stats.state === "running")));
    jobs = shown.map((name) => <JobLine key={name} name={name} job={progress[name]!} canStart={canStart} start={start} />);
    const names = { stats: "measured", findings: "checked", diff: "compared" } as const;
    const done = ([["stats", stats], ["findings", findings], ["diff", diff]] as const)
      .filter(([, job]) => job?.state === "done").map(([name]) => names[name]).join(", ");
    said = done === "" ? "" : `${done.charAt(0).toUpperCase()}${done.slice(1)}`;
  }
  return (
    <footer class="status" data-testid="progress">
      <div class="jobs">
        {jobs}
        {said !== "" && <span class="dim">{said}</span>}
        {said !== "" && summary.live && canStart && (
          <button type="button" class="again" data-testid="start-again" title="The values of a model may have changed since" onClick={() => start("again")}>
            Measure again
          </button>
        )}
        {props.failure !== null && <span class="bad" role="alert">{props.failure}</span>}
      </div>
      <span class="dim version">leafwise {summary.version}{summary.exported ? ", exported report" : ""}</span>
    </footer>
  );
}

/** The border between list and panel, which the mouse and the arrow keys move. */
function Divider(props: { share: number; onShare(share: number): void }) {
  const limit = (share: number): number => Math.min(70, Math.max(25, Math.round(share)));
  return (
    <div
      class="divider"
      role="separator"
      aria-orientation="vertical"
      aria-label="Width of the panel"
      aria-valuemin={25}
      aria-valuemax={70}
      aria-valuenow={props.share}
      tabIndex={0}
      onKeyDown={(event) => {
        const step = event.key === "ArrowLeft" ? 3 : event.key === "ArrowRight" ? -3 : 0;
        if (step === 0) return;
        event.preventDefault();
        props.onShare(limit(props.share + step));
      }}
      onPointerDown={(event) => event.currentTarget.setPointerCapture(event.pointerId)}
      onPointerMove={(event) => {
        if (!event.currentTarget.hasPointerCapture(event.pointerId)) return;
        props.onShare(limit(100 - (event.clientX / innerWidth) * 100));
      }}
    />
  );
}

export function App(props: { source: Source }) {
  const { source } = props;
  const [summary, setSummary] = useState<Summary | null>(null);
  const [failure, setFailure] = useState<string | null>(null);
  const [attempt, setAttempt] = useState(0);
  useEffect(() => {
    source.summary().then(
      (answer) => {
        setSummary(answer);
        setFailure(null);
        document.title = `${answer.title} – leafwise`;
      },
      (error: unknown) => setFailure(error instanceof Error ? error.message : String(error)),
    );
  }, [source, attempt]);
  if (summary) return <Page source={source} summary={summary} onReturn={() => setAttempt((count) => count + 1)} />;
  return (
    <main class="opening">
      {failure === null ? <p role="status">Opening …</p> : (
        <div role="alert">
          <p class="bad">{failure}</p>
          <button type="button" onClick={() => setAttempt(attempt + 1)}>Try again</button>
        </div>
      )}
    </main>
  );
}

function Page(props: { source: Source; summary: Summary; onReturn(): void }) {
  const { source, summary } = props;
  const [state, change] = useAddress(summary.views[0] ?? "tree");
  const { progress, version, isGone, returns, failure, start } = useProgress(source);
  useEffect(() => {
    if (returns > 0) props.onReturn(); // it may show another file now
  }, [returns]);
  const badges = useBadges(source, summary, version);
  const [answer, setAnswer] = useState<Answered | null>(null);
  const [reveals, setReveals] = useState(0);
  const [panelShare, setPanelShare] = useState(() => {
    const share = Number(stored("panel"));
    return share >= 25 && share <= 70 ? share : 45;
  });
  const isNarrow = useMedia(NARROW);
  const input = useRef<HTMLInputElement>(null);
  const content = useRef<HTMLElement>(null);
  const back = useRef<HTMLButtonElement>(null);

  const view: ViewName = summary.views.includes(state.view) ? state.view : summary.views[0] ?? "tree";
  const current: State = { ...state, view };
  const canStart = !summary.exported;

  // Each tab leads to where it was left; the leaf and the query are the same in all.
  const left = useRef(new Map<ViewName, State>()).current;
  left.set(view, current);
  const tabAddress = (name: ViewName): string =>
    address({ ...(left.get(name) ?? { ...EMPTY, depth: null }), view: name, leaf: state.leaf, query: state.query });

  const focusList = (): void => content.current?.querySelector<HTMLElement>(".scroller")?.focus();
  const open = useCallback((path: string) => change({ leaf: path }, true), []);
  const close = useCallback(() => {
    change({ leaf: null }, true);
    requestAnimationFrame(focusList);
  }, []);
  const showInTree = useCallback((path: string) => {
    const isFiltered = latest.current.query !== "";
    change({
      view: "tree", leaf: path, query: "", sort: "", descending: false,
      toggled: isFiltered || latest.current.view !== "tree" ? left.get("tree")?.toggled ?? [] : latest.current.toggled,
      depth: left.get("tree")?.depth ?? null,
    }, true);
    setReveals((count) => count + 1);
  }, []);
  const latest = useRef(current);
  latest.current = current;
  const onQuery = (query: string): void => {
    if (SEARCHED.includes(view)) change({ query, toggled: [], line: 0 });
    else change({ ...(left.get("tree") ?? EMPTY), view: "tree", leaf: state.leaf, query, toggled: [], line: 0 }, true);
  };

  useEffect(() => listenToPage({
    search: () => {
      input.current?.focus();
      input.current?.select();
    },
    close: () => {
      if (latest.current.leaf !== null) close();
    },
  }), []);
  useEffect(() => setAnswer(null), [view]);
  const isCovered = isNarrow && state.leaf !== null;
  useLayoutEffect(() => {
    if (isCovered) back.current?.focus();
  }, [isCovered]);
  // On a narrow screen the tabs scroll sideways.
  const tabs = useRef<HTMLElement>(null);
  useEffect(() => {
    tabs.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [view, badges]);
  const onShare = (share: number): void => {
    setPanelShare(share);
    store("panel", String(share));
  };

  const onLine = useCallback((line: number) => change({ line }), []);
  const common = { source, version, state: current, change, onOpen: open, onLine };
  return (
    <div class={`page${state.leaf !== null ? " with-panel" : ""}`} style={{ "--panel-share": `${panelShare}%` }}>
      <header inert={isCovered}>
        <div class="title">
          <h1 dir="ltr" title={summary.title}>{summary.title}</h1>
          <span class="kind" dir="ltr" title={summary.kind}>{summary.kind}</span>
          <About source={source} summary={summary} onOpen={open} />
          <ThemeChoice />
        </div>
        <Counts summary={summary} />
        <div class="bar">
          <nav aria-label="Views" ref={tabs}>
            {summary.views.map((name) => {
              const badge = badges[name];
              return (
                <a
                  key={name}
                  href={tabAddress(name)}
                  aria-current={name === view ? "page" : undefined}
                  data-testid={`tab-${name}`}
                >
                  {TITLES[name] ?? name}
                  {badge && (
                    <span class={`badge ${badge.look}`} title={badge.meaning}>
                      <span aria-hidden="true">{badge.text}</span><span class="hidden">{badge.meaning}</span>
                    </span>
                  )}
                </a>
              );
            })}
          </nav>
          <Search
            query={state.query}
            answer={SEARCHED.includes(view) ? answer : null}
            input={input}
            onQuery={onQuery}
            onLeave={focusList}
          />
        </div>
      </header>
      <div class="banners" aria-live="polite" inert={isCovered}>
        {isGone && (
          <p class="banner error" data-testid="banner">
            The server has stopped. Start it again with <code dir="ltr">leafwise view …</code>, and open the address that it prints.
          </p>
        )}
        {progress?.warning && <p class="banner warning" data-testid="banner" dir="ltr">{progress.warning}</p>}
        <Notes notes={summary.notes} />
      </div>
      <div class="body">
        <main ref={content} inert={isCovered} aria-label={TITLES[view] ?? view}>
          {view === "tree" && <Tree {...common} summary={summary} reveals={reveals} onAnswer={setAnswer} />}
          {view === "map" && (
            <MapView
              source={source}
              version={version}
              path={state.node}
              color={state.color}
              onPath={(node) => change({ node }, true)}
              onColor={(color) => change({ color })}
              onOpen={open}
            />
          )}
          {view === "stats" && <Stats {...common} canStart={canStart} start={start} onAnswer={setAnswer} />}
          {view === "findings" && <FindingsView {...common} canStart={canStart} start={start} />}
          {view === "diff" && <DiffView {...common} canStart={canStart} start={start} onAnswer={setAnswer} />}
          {view === "plan" && <PlanView {...common} onAnswer={setAnswer} />}
        </main>
        {state.leaf !== null && (
          <aside aria-label="Leaf">
            {!isNarrow && <Divider share={panelShare} onShare={onShare} />}
            <div class="panel" data-testid="panel">
              {isNarrow && (
                <div class="back">
                  <button type="button" ref={back} data-testid="back" onClick={close}>← Back to {(TITLES[view] ?? view).toLowerCase()}</button>
                </div>
              )}
              <LeafPanel
                source={source}
                version={version}
                summary={summary}
                path={state.leaf}
                onOpen={open}
                onClose={close}
                onShowInTree={showInTree}
              />
            </div>
          </aside>
        )}
      </div>
      <StatusBar progress={progress} summary={summary} failure={failure} start={start} />
    </div>
  );
}
