// Everything about one leaf.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useAnswer, useCalm, type Answer } from "./answers";
import { bytes, number, percent, shape, whole } from "./format";
import { Histogram } from "./histogram";
import "./leaf.css";
import { NormsView } from "./norms";
import { PictureView } from "./tiles";
import type { Change, Finding, LeafFacts, LeafStatistics, Num, Source, Summary } from "./types";

export function LeafPanel(props: {
  source: Source;
  version: number;
  summary: Summary;
  path: string;
  onOpen(path: string): void;
  onClose(): void;
  onShowInTree(path: string): void;
}) {
  const { source, summary, path, onOpen, onClose, onShowInTree } = props;
  const version = useCalm(props.version);
  const facts = useAnswer(() => source.leaf(path), path, version);
  const [asked, setAsked] = useState<string | null>(null); // the leaf that is measured because of a click
  const [said, setSaid] = useState("");
  const code = useRef<HTMLElement>(null);
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => setSaid(""), [path]);

  const leaf = facts.value;
  const copy = (text: string, what: string, shown: HTMLElement | null) => {
    const select = () => {
      if (shown !== null) getSelection()?.selectAllChildren(shown);
      setSaid("It is selected: copy it with Ctrl+C.");
    };
    // Without https, and in some browsers on file://, there is no clipboard.
    if (navigator.clipboard === undefined) select();
    else navigator.clipboard.writeText(text).then(() => setSaid(`Copied the ${what}.`), select);
  };
  return (
    <section class="leaf-panel" aria-label={`Leaf ${path}`} data-testid="leaf-panel">
      <header class="leaf-head">
        <div class="leaf-tools">
          <Step label="Previous leaf" sign="↑" goal={leaf?.previous ?? null} onOpen={onOpen} testid="leaf-previous" />
          <Step label="Next leaf" sign="↓" goal={leaf?.next ?? null} onOpen={onOpen} testid="leaf-next" />
          <button type="button" onClick={() => onShowInTree(path)} data-testid="leaf-tree">Show in the tree</button>
          <button type="button" onClick={() => copy(path, "path", heading.current)} data-testid="leaf-copy-path">Copy path</button>
          <button type="button" class="leaf-close" aria-label="Close" onClick={onClose} data-testid="leaf-close">✕</button>
        </div>
        <h2 ref={heading} dir="ltr">{breakable(path)}</h2>
        {leaf !== null && <p class="leaf-label" dir="ltr">{leaf.label}</p>}
        {leaf !== null && (
          <div class="leaf-code">
            <code ref={code} dir="ltr" data-testid="leaf-code">{leaf.code}</code>
            <button type="button" onClick={() => copy(leaf.code, "code", code.current)} data-testid="leaf-copy-code">Copy code</button>
          </div>
        )}
        <p class="leaf-said" aria-live="polite">{said}</p>
      </header>
      {facts.error !== null && <Failed answer={facts} />}
      {facts.waiting && <p class="leaf-wait">Loading …</p>}
      {leaf !== null && (
        <>
          <Facts leaf={leaf} />
          <FindingsOf findings={leaf.findings} />
          {leaf.change !== null && <ChangeOf change={leaf.change} names={summary.names} />}
          <Ties leaf={leaf} path={path} onOpen={onOpen} />
          {leaf.automatic || asked === leaf.path ? (
            <Measured key={leaf.path} source={source} leaf={leaf} exported={summary.exported} />
          ) : (
            <section class="leaf-section" aria-label="Measure">
              <button type="button" class="leaf-measure" data-testid="leaf-measure" onClick={() => setAsked(leaf.path)}>
                Read {bytes(leaf.read_bytes)} and measure
              </button>
              <p class="leaf-hint">Statistics, norms and the picture are not read by themselves for a leaf of this size.</p>
            </section>
          )}
        </>
      )}
    </section>
  );
}

/** A path that breaks after dots and slashes. */
function breakable(path: string): ComponentChildren {
  return path.split(/(?<=[./])/).flatMap((part, index) => (index === 0 ? [part] : [<wbr key={index} />, part]));
}

function Step(props: { label: string; sign: string; goal: string | null; onOpen(path: string): void; testid: string }) {
  const { label, sign, goal, onOpen, testid } = props;
  // aria-disabled, not disabled: while the next leaf loads, the button would lose the focus.
  return (
    <button
      type="button"
      aria-label={label}
      title={goal ?? label}
      aria-disabled={goal === null}
      data-testid={testid}
      onClick={() => {
        if (goal !== null) onOpen(goal);
      }}
    >
      {sign}
    </button>
  );
}

function Failed<T>({ answer }: { answer: Answer<T> }) {
  return (
    <p class="leaf-error" role="alert">
      <span dir="ltr">{answer.error}</span>{" "}
      <button type="button" onClick={answer.again}>Try again</button>
    </p>
  );
}

function Facts({ leaf }: { leaf: LeafFacts }) {
  return (
    <section class="leaf-section" aria-label="Facts" data-testid="leaf-facts">
      <dl class="leaf-facts">
        {leaf.facts.map((fact) => (
          <div key={fact.name}>
            <dt dir="ltr">{fact.name}</dt>
            <dd dir="ltr">{fact.value}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

const SIGNS: Record<string, string> = { error: "✕", warning: "▲", note: "•" };

function FindingsOf({ findings }: { findings: Finding[] }) {
  if (findings.length === 0) return null;
  return (
    <section class="leaf-section" aria-label="Findings" data-testid="leaf-findings">
      <h3>Findings</h3>
      <ul class="leaf-findings">
        {findings.map((finding, index) => (
          <li key={index} class={`leaf-finding leaf-${finding.level}`}>
            <span class="leaf-level"><span aria-hidden="true">{SIGNS[finding.level] ?? "·"} </span>{finding.level}</span>
            <span dir="ltr">{finding.message}</span> <code dir="ltr">{finding.code}</code>
          </li>
        ))}
      </ul>
    </section>
  );
}

function ChangeOf({ change, names }: { change: Change; names: string[] }) {
  const figures: [string, string][] = [];
  if (change.other !== null && change.other !== change.path) figures.push([`in ${names[1] ?? "the other"}`, change.other]);
  if (change.other_dtype !== null && change.other_dtype !== change.dtype) figures.push(["dtype", `${change.dtype ?? "?"} → ${change.other_dtype}`]);
  if (change.other_shape !== null && shape(change.other_shape) !== shape(change.shape)) {
    figures.push(["shape", `${shape(change.shape)} → ${shape(change.other_shape)}`]);
  }
  if (change.relative_l2 !== null) figures.push(["relative L2", number(change.relative_l2)]);
  if (change.cosine !== null) figures.push(["cosine", number(change.cosine)]);
  if (change.largest !== null) figures.push(["largest difference", number(change.largest)]);
  if (change.share !== null) figures.push(["values that changed", percent(change.share)]);
  if (change.values !== null) figures.push(["value", `${change.values[0]} → ${change.values[1]}`]);
  return (
    <section class="leaf-section" aria-label="Change" data-testid="leaf-change">
      <h3>Change</h3>
      <p class="leaf-kinds" dir="ltr">{change.kinds.join(", ")}</p>
      {figures.length > 0 && (
        <dl class="leaf-facts">
          {figures.map(([name, value]) => (
            <div key={name}>
              <dt dir="ltr">{name}</dt>
              <dd dir="ltr">{value}</dd>
            </div>
          ))}
        </dl>
      )}
      {change.notes.map((note, index) => (
        <p key={index} class="leaf-hint" dir="ltr">{note}</p>
      ))}
    </section>
  );
}

const MOST_NAMES = 100; // listed; an object may have thousands
const OPS: Record<string, string> = { same: "the same tensor", transpose: "its transpose" };

function Ties({ leaf, path, onOpen }: { leaf: LeafFacts; path: string; onOpen(path: string): void }) {
  if (leaf.names.length < 2) return null;
  return (
    <section class="leaf-section" aria-label="Ties" data-testid="leaf-ties">
      <h3>Tied: one tensor, {whole(leaf.names.length)} names</h3>
      <ul class="leaf-ties">
        {leaf.names.slice(0, MOST_NAMES).map((name) => (
          <li key={name.path}>
            {name.path === path ? (
              <strong dir="ltr">{breakable(name.path)}</strong>
            ) : (
              <button type="button" class="leaf-link" dir="ltr" onClick={() => onOpen(name.path)}>{breakable(name.path)}</button>
            )}
            <span class="leaf-tie-facts" dir="ltr">
              {[
                name.path === path ? "shown here" : null,
                OPS[name.op] ?? name.op,
                name.role,
                name.owner === "" ? null : `in ${name.owner}`,
                name.axes === null ? null : `axes ${name.axes.join(", ")}`,
              ]
                .filter((part) => part !== null && part !== "")
                .join(" · ")}
            </span>
          </li>
        ))}
      </ul>
      {leaf.names.length > MOST_NAMES && <p class="leaf-hint">and {whole(leaf.names.length - MOST_NAMES)} more</p>}
    </section>
  );
}

function Measured({ source, leaf, exported }: { source: Source; leaf: LeafFacts; exported: boolean }) {
  // Who steps through leaves quickly does not want each of them to be read.
  const [stays, setStays] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setStays(true), 120);
    return () => clearTimeout(timer);
  }, []);
  const statistics = useAnswer(stays ? () => source.statistics(leaf.path) : null, `statistics ${leaf.path}`);
  const norms = useAnswer(stays ? async () => ({ norms: await source.norms(leaf.path) }) : null, `norms ${leaf.path}`);
  const normsShown = norms.error !== null || (norms.value !== null && norms.value.norms !== null && norms.value.norms.axes.length > 0);
  return (
    <>
      <section class="leaf-section" aria-label="Picture" data-testid="leaf-picture">
        <h3>Picture</h3>
        {leaf.views.length > 0 ? (
          stays && <PictureView source={source} path={leaf.path} views={leaf.views} exported={exported} />
        ) : (
          <p class="leaf-hint" dir="ltr">{leaf.no_view ?? "It cannot be drawn."}</p>
        )}
      </section>
      <section class="leaf-section" aria-label="Histogram and statistics" data-testid="leaf-histogram" aria-busy={statistics.waiting}>
        <h3>Histogram</h3>
        {statistics.waiting && <p class="leaf-wait">Reading {bytes(leaf.read_bytes)} …</p>}
        {statistics.error !== null && <Failed answer={statistics} />}
        {statistics.value !== null && <StatisticsOf statistics={statistics.value} />}
      </section>
      {normsShown && (
        <section class="leaf-section" aria-label="Norms" data-testid="leaf-norms">
          <h3>Norms</h3>
          {norms.error !== null && <Failed answer={norms} />}
          {norms.value?.norms != null && <NormsView norms={norms.value.norms} />}
        </section>
      )}
    </>
  );
}

/** Counts in full, everything else with four digits. */
function exact(value: Num): string {
  return typeof value === "number" && Number.isInteger(value) && Math.abs(value) < 1e12 ? whole(value) : number(value);
}

function StatisticsOf({ statistics }: { statistics: LeafStatistics }) {
  if (statistics.skipped !== null) return <p class="leaf-hint" dir="ltr">{statistics.skipped}</p>;
  return (
    <>
      <Histogram statistics={statistics} />
      <dl class="leaf-numbers" data-testid="leaf-numbers">
        {statistics.numbers.map((entry) => (
          <div key={entry.name}>
            <dt dir="ltr">{entry.name}</dt>
            <dd title={String(entry.value)}>{exact(entry.value)}</dd>
          </div>
        ))}
      </dl>
    </>
  );
}
