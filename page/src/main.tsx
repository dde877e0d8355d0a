import { render } from "preact";
import { App } from "./app";
import { openReport } from "./report";
import { HttpSource } from "./source";
import { applyChosenTheme } from "./theme";
import type { Source } from "./types";
import "./base.css";
import "./app.css";

applyChosenTheme();
const place = document.getElementById("app")!;
const report = document.getElementById("report");

function show(source: Source): void {
  render(<App source={source} />, place);
}

if (report === null) {
  show(new HttpSource());
} else {
  openReport(report.textContent ?? "").then(show, (error: unknown) => {
    const reason = error instanceof Error ? error.message : String(error);
    render(<main class="opening"><p class="bad" role="alert">This report cannot be read: {reason}</p></main>, place);
  });
}
