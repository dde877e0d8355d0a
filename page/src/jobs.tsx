// Long computations: how far they are, and buttons that start them.
import { useEffect, useRef, useState } from "preact/hooks";
import { bytes, bytesOf } from "./format";
import { Refused } from "./source";
import type { Job, Progress, Source } from "./types";

export type JobName = "stats" | "findings" | "diff";
export type Start = (name: JobName | "again") => void;

const DOING: Record<JobName, string> = { stats: "Measuring", findings: "Checking", diff: "Comparing" };
const TO_DO: Record<JobName, string> = { stats: "measure", findings: "check", diff: "compare" };
const OFF: Record<JobName, string> = { stats: "Not measured yet", findings: "Not checked yet", diff: "Values not compared yet" };
const FAILED: Record<JobName, string> = { stats: "Measuring failed", findings: "Checking failed", diff: "Comparing failed" };

export function StartButton(props: { name: JobName; job: Job; start(name: JobName): void }) {
  const { name, job } = props;
  const left = Math.max(0, job.total - job.done);
  return (
    <button type="button" class="primary" data-testid={`start-${name}`} onClick={() => props.start(name)}>
      {left > 0 ? `Read ${bytes(left)} and ${TO_DO[name]}` : `Start to ${TO_DO[name]}`}
    </button>
  );
}

/** One line about a job; nothing if it is done. */
export function JobLine(props: { name: JobName; job: Job; canStart: boolean; start(name: JobName): void }) {
  const { name, job } = props;
  if (job.state === "done") return null;
  if (job.state === "running") {
    const text = job.total > 0 ? `${DOING[name]} ${bytesOf(job.done, job.total)}` : `${DOING[name]} …`;
    return (
      <span class="job">
        <span>{text}</span>
        <progress aria-label={DOING[name]} max={Math.max(1, job.total)} value={Math.min(job.done, job.total)} />
      </span>
    );
  }
  const isFailed = job.state === "failed";
  return (
    <span class="job">
      <span class={isFailed ? "bad" : ""}>
        {isFailed ? FAILED[name] : OFF[name]}
        {job.message ? <>: <bdi dir="ltr">{job.message}</bdi></> : null}
      </span>
      {props.canStart && <StartButton name={name} job={job} start={props.start} />}
    </span>
  );
}

const BUSY = 500; // milliseconds between questions while something runs
const IDLE = 3_000;
const GONE = 5_000;
const VERSION_PACE = 1_000; // lists ask again at most this often

function isRunning(progress: Progress): boolean {
  return [progress.stats, progress.findings, progress.diff].some((job) => job?.state === "running");
}

/**
 * Asks how far the jobs are, less often when nothing runs, and not at all while the page is hidden. `returns` counts
 * how often the server came back; versions start anew then, but those that this gives out always grow.
 */
export function useProgress(source: Source): {
  progress: Progress | null; version: number; isGone: boolean; returns: number; failure: string | null; start: Start;
} {
  const [progress, setProgress] = useState<Progress | null>(null);
  const [version, setVersion] = useState(0);
  const [isGone, setGone] = useState(false);
  const [returns, setReturns] = useState(0);
  const [failure, setFailure] = useState<string | null>(null);
  const again = useRef<() => void>(() => {});

  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let versionTimer: ReturnType<typeof setTimeout> | undefined;
    let isStopped = false;
    let isAsking = false;
    let known = 0; // what the server counts
    let earlier = 0; // what servers before it have counted
    let wasGone = false;
    let shown = 0;
    let shownAt = 0;
    const showVersion = (): void => {
      versionTimer = undefined;
      shown = earlier + known;
      shownAt = performance.now();
      setVersion(shown);
    };
    const askAgain = (delay: number): void => {
      clearTimeout(timer);
      if (!isStopped && !document.hidden) timer = setTimeout(ask, delay);
    };
    const ask = async (): Promise<void> => {
      if (isAsking) return;
      isAsking = true;
      let delay = IDLE;
      try {
        const answer = await source.progress(known);
        if (isStopped) return;
        setProgress((old) => (JSON.stringify(old) === JSON.stringify(answer) ? old : answer));
        setGone(false);
        if (wasGone) {
          wasGone = false;
          earlier = shown + 1;
          setReturns((count) => count + 1);
        }
        known = answer.version;
        if (earlier + known !== shown && versionTimer === undefined) {
          versionTimer = setTimeout(showVersion, Math.max(0, shownAt + VERSION_PACE - performance.now()));
        }
        if (isRunning(answer)) delay = BUSY;
      } catch (error) {
        if (isStopped) return;
        // An answer with an error is an answer: the server is there. But one that was started anew has another address.
        wasGone = !(error instanceof Refused) || error.status === 403 || error.status === 404;
        setGone(wasGone);
        delay = GONE;
      } finally {
        isAsking = false;
      }
      askAgain(delay);
    };
    const onVisible = (): void => {
      if (document.hidden) clearTimeout(timer);
      else void ask();
    };
    again.current = () => askAgain(0);
    document.addEventListener("visibilitychange", onVisible);
    void ask();
    return () => {
      isStopped = true;
      clearTimeout(timer);
      clearTimeout(versionTimer);
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, [source]);

  const start: Start = (name) => {
    setFailure(null);
    source.start(name).then(
      () => again.current(),
      (error: unknown) => setFailure(error instanceof Error ? error.message : String(error)),
    );
  };
  return { progress, version, isGone, returns, failure, start };
}
