// The search field. The source interprets the query; this explains the language.
import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { counted } from "./format";
import type { Answered } from "./tree";

const PAUSE = 150; // milliseconds without a key before the query is asked

const EXAMPLES: [string, string][] = [
  ["attn weight", "paths that contain all these words"],
  ["layers.*.weight", "* stands for one entry of the path, or a part of one"],
  ["**.bias", "** stands for any number of entries"],
  ["layers.{0..3}.**", "a range of numbers"],
  ["**.{weight,bias}", "alternatives"],
  ["role:norm.*", "leaves with this role"],
  ["dtype:bfloat16", "or another dtype"],
  ["owner:Linear", "leaves of modules of this class"],
  ["kind:buffer", "or parameter, or state"],
  ["ndim:2", "matrices"],
  ["tied:yes", "leaves with several names"],
  ["trainable:no", "frozen leaves"],
  ["device:cuda:0", "leaves on this device"],
  ["section:optimizer", "or weights, or rest"],
];

export function Search(props: {
  query: string; answer: Answered | null; input: RefObject<HTMLInputElement | null>; onQuery(query: string): void; onLeave(): void;
}) {
  const [text, setText] = useState(props.query);
  const [isHelpOpen, setHelp] = useState(false);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const asked = useRef(props.query);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // The query has changed from outside: back and forward, or a link.
    if (props.query !== asked.current) {
      clearTimeout(timer.current);
      asked.current = props.query;
      setText(props.query);
    }
  }, [props.query]);
  useEffect(() => () => clearTimeout(timer.current), []);
  useEffect(() => {
    if (!isHelpOpen) return undefined;
    const close = (event: Event): void => {
      if (event.target instanceof Node && !box.current?.contains(event.target)) setHelp(false);
    };
    document.addEventListener("pointerdown", close);
    document.addEventListener("focusin", close);
    return () => {
      document.removeEventListener("pointerdown", close);
      document.removeEventListener("focusin", close);
    };
  }, [isHelpOpen]);

  const ask = (query: string): void => {
    clearTimeout(timer.current);
    if (query === asked.current) return;
    asked.current = query;
    props.onQuery(query);
  };
  const type = (query: string): void => {
    setText(query);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => ask(query), PAUSE);
  };
  const error = text === "" ? null : props.answer?.error ?? null;
  const matches = text === "" ? null : props.answer?.matches ?? null;
  return (
    <div
      class="search"
      role="search"
      ref={box}
      onKeyDown={(event) => {
        if (event.key !== "Escape" || !isHelpOpen) return;
        event.preventDefault();
        setHelp(false);
        props.input.current?.focus();
      }}
    >
      <input
        ref={props.input}
        type="search"
        data-testid="search"
        aria-label="Search leaves"
        aria-invalid={error !== null}
        aria-describedby="search-answer"
        aria-keyshortcuts="/"
        placeholder="Search: words, **.weight, dtype:…"
        autocomplete="off"
        autocapitalize="off"
        spellcheck={false}
        dir="ltr"
        value={text}
        onInput={(event) => type(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter") ask(text);
          if (event.key === "ArrowDown" && !event.defaultPrevented) {
            event.preventDefault();
            ask(text);
            props.onLeave();
          }
          if (event.key === "Escape" && !isHelpOpen) {
            event.preventDefault();
            if (text === "") props.onLeave();
            setText("");
            ask("");
          }
        }}
      />
      <button
        type="button"
        class="help"
        aria-label="How to search"
        aria-expanded={isHelpOpen}
        aria-controls="search-help"
        onClick={() => setHelp(!isHelpOpen)}
      >?</button>
      <span id="search-answer" class={error !== null ? "answer bad" : "answer"} role="status" dir="ltr" title={error ?? undefined}>
        {error ?? (matches === null ? "" : counted(matches, "match", "matches"))}
      </span>
      <div id="search-help" class="popover" hidden={!isHelpOpen}>
        <p>Everything you type must hold. A click on an example tries it.</p>
        <dl>
          {EXAMPLES.map(([example, meaning]) => (
            <div key={example}>
              <dt>
                <button
                  type="button"
                  onClick={() => {
                    setText(example);
                    ask(example);
                    setHelp(false);
                    props.input.current?.focus();
                  }}
                >{example}</button>
              </dt>
              <dd>{meaning}</dd>
            </div>
          ))}
        </dl>
        <p class="dim">Keys: / searches, arrows move and fold, Enter opens, Escape closes.</p>
      </div>
    </div>
  );
}
