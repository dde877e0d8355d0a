// The picture of a leaf: a heat map made of tiles that can be zoomed and moved.
import { useCallback, useEffect, useLayoutEffect, useMemo, useState } from "preact/hooks";
import { calmMotion, useAnswer, useSize, useTheme, variable } from "./answers";
import { number, whole } from "./format";
import type { MatrixView, Scale, Source, Value } from "./types";

const TILE = 256; // pixels of a tile
const LARGEST = 32; // CSS pixels of a value, at most
const THINNEST = 24; // CSS pixels of all rows (or columns) together, at least: a strip would be a hair otherwise
const KEPT = 200; // images
const AT_ONCE = 4; // requests

interface Tile {
  image: HTMLImageElement;
  limit: number;
}

export interface Visible {
  rows: [number, number];
  columns: [number, number];
  scale: number;
  fits: boolean; // everything is visible
  most: boolean; // no further zoom
}

type AddressOf = (z: number, y: number, x: number, limit: number) => string | null;

/** The smallest z for which there are tiles: in a report, there are only coarse ones. Null if there are none at all. */
function finestLevel(levels: number, limit: number, address: AddressOf): number | null {
  for (let z = 0; z < levels; z += 1) if (address(z, 0, 0, limit) !== null) return z;
  return null;
}

/** What is on the canvas. It lives outside of the components: moving and zooming renders none of them. */
class Picture {
  private width = 0;
  private height = 0;
  private scale = 0; // CSS pixels per value
  private x = 0; // the value at the left edge
  private y = 0; // the value at the upper edge
  private limit = 0;
  private readonly tiles = new Map<string, Tile>(); // the least recently used first
  private readonly loading = new Map<string, Tile>();
  private readonly failed = new Map<string, number>();
  private frame = 0;
  private glide: { from: [number, number, number]; to: [number, number, number]; start: number } | null = null;
  private fitted = true;
  cross: { row: number; column: number } | null = null;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly view: MatrixView,
    private readonly finest: number, // the smallest z for which there are tiles
    private readonly address: AddressOf,
    private readonly report: { seen(visible: Visible): void; failed(count: number): void; first(): void },
  ) {}

  destroy(): void {
    cancelAnimationFrame(this.frame);
    for (const tile of this.loading.values()) drop(tile.image);
    this.loading.clear();
    this.tiles.clear();
  }

  resize(width: number, height: number): void {
    if (width === this.width && height === this.height) return;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const [middleX, middleY] = [this.x + this.width / 2 / this.sx, this.y + this.height / 2 / this.sy];
    this.width = width;
    this.height = height;
    if (this.fitted || this.scale === 0) this.fit(false);
    else this.look(this.scale, middleX - width / 2 / this.sx, middleY - height / 2 / this.sy);
    this.paint();
  }

  setLimit(limit: number): void {
    if (limit === this.limit) return;
    this.limit = limit;
    this.failed.clear();
    this.draw();
  }

  retry(): void {
    this.failed.clear();
    this.draw();
  }

  private get sx(): number {
    return Math.max(this.scale, THINNEST / this.view.columns);
  }
  private get sy(): number {
    return Math.max(this.scale, THINNEST / this.view.rows);
  }
  private get smallest(): number {
    return Math.min(LARGEST, this.width / this.view.columns, this.height / this.view.rows);
  }
  private get largest(): number {
    // Where finer tiles are missing (in a report), pixels of the finest there are may still be enlarged a little.
    const most = this.finest === 0 ? LARGEST : 8 / 2 ** this.finest;
    return Math.max(this.smallest, most);
  }

  private look(scale: number, x: number, y: number): void {
    this.scale = Math.min(this.largest, Math.max(this.smallest, scale));
    this.fitted = this.scale <= this.smallest * 1.001;
    const { rows, columns } = this.view;
    const across = this.width / this.sx;
    const down = this.height / this.sy;
    this.x = across >= columns ? (columns - across) / 2 : Math.min(columns - across, Math.max(0, x));
    this.y = down >= rows ? (rows - down) / 2 : Math.min(rows - down, Math.max(0, y));
    this.draw();
  }

  private move(scale: number, x: number, y: number, smooth: boolean): void {
    const from: [number, number, number] = [this.scale, this.x, this.y];
    this.look(scale, x, y);
    if (!smooth || calmMotion() || from[0] === 0) {
      this.glide = null;
      return;
    }
    const to: [number, number, number] = [this.scale, this.x, this.y];
    this.glide = { from, to, start: performance.now() };
    this.look(...from);
  }

  fit(smooth: boolean = true): void {
    this.move(0, 0, 0, smooth);
  }

  /** Zooms by a factor; the value under the point stays where it is. */
  zoom(factor: number, left: number = this.width / 2, top: number = this.height / 2, smooth: boolean = false): void {
    this.zoomTo((this.glide?.to[0] ?? this.scale) * factor, left, top, smooth);
  }

  zoomTo(scale: number, left: number = this.width / 2, top: number = this.height / 2, smooth: boolean = true): void {
    const column = this.x + left / this.sx;
    const row = this.y + top / this.sy;
    const wanted = Math.min(this.largest, Math.max(this.smallest, scale));
    const sx = Math.max(wanted, THINNEST / this.view.columns);
    const sy = Math.max(wanted, THINNEST / this.view.rows);
    this.move(wanted, column - left / sx, row - top / sy, smooth);
  }

  /** Moves by CSS pixels. */
  pan(dx: number, dy: number): void {
    this.glide = null;
    this.look(this.scale, this.x - dx / this.sx, this.y - dy / this.sy);
  }

  /** The value at a point; null outside. */
  at(left: number, top: number): { row: number; column: number } | null {
    const column = Math.floor(this.x + left / this.sx);
    const row = Math.floor(this.y + top / this.sy);
    const inside = row >= 0 && column >= 0 && row < this.view.rows && column < this.view.columns;
    return inside ? { row, column } : null;
  }

  /** Moves the cross hair by pixels of the picture (values, if they are enlarged), and keeps it visible. */
  step(dx: number, dy: number): { row: number; column: number } {
    const { rows, columns } = this.view;
    const size = (scale: number) => Math.max(1, Math.round(1 / scale));
    const from = this.cross ?? {
      row: Math.floor(this.y + this.height / 2 / this.sy),
      column: Math.floor(this.x + this.width / 2 / this.sx),
    };
    const row = Math.min(rows - 1, Math.max(0, from.row + dy * size(this.sy)));
    const column = Math.min(columns - 1, Math.max(0, from.column + dx * size(this.sx)));
    this.cross = { row, column };
    const across = this.width / this.sx;
    const down = this.height / this.sy;
    const x = column < this.x ? column : column + 1 > this.x + across ? column + 1 - across : this.x;
    const y = row < this.y ? row : row + 1 > this.y + down ? row + 1 - down : this.y;
    this.look(this.scale, x, y);
    return this.cross;
  }

  get visible(): Visible {
    const { rows, columns } = this.view;
    const within = (value: number, most: number) => Math.min(most, Math.max(0, value));
    return {
      rows: [within(Math.floor(this.y), rows - 1), within(Math.ceil(this.y + this.height / this.sy) - 1, rows - 1)],
      columns: [within(Math.floor(this.x), columns - 1), within(Math.ceil(this.x + this.width / this.sx) - 1, columns - 1)],
      scale: this.scale,
      fits: this.fitted,
      most: this.scale >= this.largest * 0.999,
    };
  }

  draw(): void {
    if (this.frame !== 0) return;
    this.frame = requestAnimationFrame((now) => {
      this.frame = 0;
      if (this.glide !== null) {
        const { from, to, start } = this.glide;
        const time = Math.min(1, Math.max(0, (now - start) / 160));
        const share = 1 - (1 - time) ** 3;
        // In equal ratios: zooming looks even only in the logarithm of the scale.
        const scale = from[0] * (to[0] / from[0]) ** share;
        const moved = to[0] === from[0] ? share : (1 / scale - 1 / from[0]) / (1 / to[0] - 1 / from[0]);
        this.look(scale, from[1] + (to[1] - from[1]) * moved, from[2] + (to[2] - from[2]) * moved);
        if (time >= 1) {
          this.glide = null;
          this.look(...to);
        }
      }
      this.paint();
      this.report.seen(this.visible);
    });
  }

  private paint(): void {
    const context = this.canvas.getContext("2d");
    if (context === null || this.scale === 0 || this.limit < 0) return;
    const ratio = this.canvas.width / Math.max(1, this.width);
    const { rows, columns, levels } = this.view;
    const { sx, sy } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const pixelX = (column: number) => Math.round((column - this.x) * sx * ratio);
    const pixelY = (row: number) => Math.round((row - this.y) * sy * ratio);
    context.save();
    context.beginPath();
    context.rect(pixelX(0), pixelY(0), pixelX(columns) - pixelX(0), pixelY(rows) - pixelY(0));
    context.clip();

    const ideal = Math.round(-Math.log2(Math.min(sx, sy) * ratio));
    const z = Math.min(levels - 1, Math.max(this.finest, ideal));
    const span = TILE * 2 ** z;
    const { rows: seenRows, columns: seenColumns } = this.visible;
    const wanted: { z: number; y: number; x: number; far: number }[] = [];
    const middleX = (seenColumns[0] + seenColumns[1]) / 2 / span;
    const middleY = (seenRows[0] + seenRows[1]) / 2 / span;
    for (let y = Math.floor(seenRows[0] / span); y <= Math.floor(seenRows[1] / span); y += 1) {
      for (let x = Math.floor(seenColumns[0] / span); x <= Math.floor(seenColumns[1] / span); x += 1) {
        wanted.push({ z, y, x, far: Math.hypot(x + 0.5 - middleX, y + 0.5 - middleY) });
        this.paintTile(context, z, y, x, pixelX, pixelY, Math.min(sx, sy) * ratio);
      }
    }
    wanted.sort((a, b) => a.far - b.far);
    // The coarsest tiles come first: they stand in for all others.
    if (z < levels - 1) {
      const coarse = TILE * 2 ** (levels - 1);
      for (let y = Math.floor(seenRows[0] / coarse); y <= Math.floor(seenRows[1] / coarse); y += 1) {
        for (let x = Math.floor(seenColumns[0] / coarse); x <= Math.floor(seenColumns[1] / coarse); x += 1) {
          wanted.unshift({ z: levels - 1, y, x, far: 0 });
        }
      }
    }
    context.restore();
    this.paintCross(context, ratio, pixelX, pixelY);
    this.load(wanted);
  }

  private paintTile(
    context: CanvasRenderingContext2D, z: number, y: number, x: number,
    pixelX: (column: number) => number, pixelY: (row: number) => number, density: number,
  ): void {
    const span = TILE * 2 ** z;
    const put = (level: number, image: HTMLImageElement, left: number, top: number, width: number, height: number, column: number, row: number) => {
      const each = 2 ** level;
      context.imageSmoothingEnabled = each * density < 1;
      const x0 = pixelX(column);
      const y0 = pixelY(row);
      context.drawImage(image, left, top, width, height, x0, y0, pixelX(column + width * each) - x0, pixelY(row + height * each) - y0);
    };
    const exact = this.use(`${z}/${y}/${x}`);
    if (exact !== null) {
      put(z, exact.image, 0, 0, exact.image.width, exact.image.height, x * span, y * span);
      return;
    }
    for (let level = z + 1; level < this.view.levels; level += 1) {
      const factor = 2 ** (level - z);
      const above = this.use(`${level}/${Math.floor(y / factor)}/${Math.floor(x / factor)}`);
      if (above === null) continue;
      const part = TILE / factor;
      const left = (x % factor) * part;
      const top = (y % factor) * part;
      const width = Math.min(part, above.image.width - left);
      const height = Math.min(part, above.image.height - top);
      if (width > 0 && height > 0) put(level, above.image, left, top, width, height, x * span, y * span);
      return;
    }
  }

  private paintCross(context: CanvasRenderingContext2D, ratio: number, pixelX: (column: number) => number, pixelY: (row: number) => number): void {
    if (this.cross === null) return;
    const { row, column } = this.cross;
    const [x0, x1] = [pixelX(column), Math.max(pixelX(column + 1), pixelX(column) + ratio)];
    const [y0, y1] = [pixelY(row), Math.max(pixelY(row + 1), pixelY(row) + ratio)];
    const lines: [number, number, number, number][] = [
      [0, (y0 + y1) / 2, x0 - 2 * ratio, (y0 + y1) / 2],
      [x1 + 2 * ratio, (y0 + y1) / 2, this.canvas.width, (y0 + y1) / 2],
      [(x0 + x1) / 2, 0, (x0 + x1) / 2, y0 - 2 * ratio],
      [(x0 + x1) / 2, y1 + 2 * ratio, (x0 + x1) / 2, this.canvas.height],
    ];
    // Dark below, light above: visible on every color.
    for (const [color, width] of [["#000000", 3], ["#ffffff", 1]] as const) {
      context.strokeStyle = color;
      context.lineWidth = width * ratio;
      context.beginPath();
      for (const [ax, ay, bx, by] of lines) {
        context.moveTo(ax, ay);
        context.lineTo(bx, by);
      }
      context.rect(x0 - 2 * ratio, y0 - 2 * ratio, x1 - x0 + 4 * ratio, y1 - y0 + 4 * ratio);
      context.stroke();
    }
  }

  private use(key: string): Tile | null {
    const tile = this.tiles.get(key);
    if (tile === undefined) return null;
    this.tiles.delete(key);
    this.tiles.set(key, tile);
    return tile;
  }

  private load(wanted: { z: number; y: number; x: number }[]): void {
    const { limit } = this;
    if (!(limit > 0)) return;
    const missing = wanted.filter(({ z, y, x }) => {
      const key = `${z}/${y}/${x}`;
      return this.use(key)?.limit !== limit && this.failed.get(key) !== limit;
    });
    const keys = new Set(missing.map(({ z, y, x }) => `${z}/${y}/${x}`));
    for (const [key, tile] of this.loading) {
      if (keys.has(key) && tile.limit === limit) continue;
      drop(tile.image);
      this.loading.delete(key);
    }
    for (const { z, y, x } of missing) {
      if (this.loading.size >= AT_ONCE) break;
      const key = `${z}/${y}/${x}`;
      if (this.loading.has(key)) continue;
      const url = this.address(z, y, x, limit);
      if (url === null) {
        this.failed.set(key, limit);
        continue;
      }
      this.start(key, url, limit);
    }
    this.report.failed(this.failed.size);
  }

  private start(key: string, url: string, limit: number): void {
    const image = new Image();
    const tile = { image, limit };
    this.loading.set(key, tile);
    const ended = (good: boolean) => {
      if (this.loading.get(key) !== tile) return;
      this.loading.delete(key);
      if (good) {
        if (this.tiles.size === 0) this.report.first();
        this.tiles.set(key, tile);
        for (const oldest of this.tiles.keys()) {
          if (this.tiles.size <= KEPT) break;
          this.tiles.delete(oldest);
        }
      } else this.failed.set(key, limit);
      this.draw();
    };
    image.src = url;
    // decode() unpacks the picture before it is drawn, and not on this thread.
    image.decode().then(() => ended(true), () => ended(false));
  }
}

function drop(image: HTMLImageElement): void {
  image.removeAttribute("src");
}

export function PictureView(props: { source: Source; path: string; views: MatrixView[]; exported: boolean }) {
  const { source, path, views, exported } = props;
  const [chosen, setChosen] = useState(0);
  const view = views[chosen] ?? views[0]!;
  const scale = useAnswer(() => source.scale(path, view.layout), `${path}\n${view.layout}`);
  return (
    <div class="picture">
      {views.length > 1 && (
        <fieldset class="picture-layouts">
          <legend>Layout</legend>
          {views.map((each, index) => (
            <label key={each.layout}>
              <input type="radio" name="picture-layout" checked={index === chosen} onChange={() => setChosen(index)} />
              <span>{each.layout}</span>
            </label>
          ))}
        </fieldset>
      )}
      {scale.error !== null && (
        <p class="leaf-error" role="alert">
          <span dir="ltr">{scale.error}</span> <button type="button" onClick={scale.again}>Try again</button>
        </p>
      )}
      {scale.waiting && <p class="leaf-wait">Reading …</p>}
      {scale.value !== null && (
        <Tiles key={`${path}\n${view.layout}`} source={source} path={path} view={view} scale={scale.value} exported={exported} />
      )}
    </div>
  );
}

interface Spot {
  row: number;
  column: number;
  keyboard: boolean;
}

function Tiles(props: { source: Source; path: string; view: MatrixView; scale: Scale; exported: boolean }) {
  const { source, path, view, scale, exported } = props;
  const [placeRef, width] = useSize<HTMLDivElement>();
  const [canvas, setCanvas] = useState<HTMLCanvasElement | null>(null);
  const [visible, setVisible] = useState<Visible | null>(null);
  const [failed, setFailed] = useState(0);
  const [arrived, setArrived] = useState(false);
  const [limit, setLimit] = useState(scale.limit);
  const [hover, setHover] = useState<Spot | null>(null);
  const [cross, setCross] = useState<Spot | null>(null);
  const address = useCallback<AddressOf>((z, y, x, most) => source.tile(path, view.layout, z, y, x, most), [source, path, view.layout]);
  const finest = useMemo(() => finestLevel(view.levels, scale.limit || 1, address), [view.levels, scale.limit, address]);
  const picture = useMemo(
    () =>
      canvas === null || finest === null
        ? null
        : new Picture(canvas, view, finest, address, {
            seen: (now) => setVisible((old) => (old !== null && sameView(old, now) ? old : now)),
            failed: setFailed,
            first: () => setArrived(true),
          }),
    [canvas, finest, address, view.rows, view.columns, view.levels],
  );
  useEffect(() => (picture === null ? undefined : () => picture.destroy()), [picture]);

  const tall = (view.rows * Math.min(LARGEST, width / view.columns)) | 0;
  const height = Math.max(72, Math.min(tall, Math.round(Math.min(440, innerHeight * 0.6))));
  useLayoutEffect(() => {
    if (width > 0) picture?.resize(width, height);
  }, [picture, width, height]);
  useEffect(() => {
    const timer = setTimeout(() => picture?.setLimit(limit > 0 ? limit : 1), limit === scale.limit ? 0 : 150);
    return () => clearTimeout(timer);
  }, [picture, limit, scale.limit]);
  usePointer(canvas, picture, setHover, setCross);

  const spot = hover ?? cross;
  const value = useValue(source, path, view.layout, spot);
  const keys = (event: KeyboardEvent) => {
    if (picture === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (arrow !== undefined && event.shiftKey) {
      setHover(null);
      setCross({ ...picture.step(arrow[0]!, arrow[1]!), keyboard: true });
    } else if (arrow !== undefined) picture.pan(-arrow[0]! * 48, -arrow[1]! * 48);
    else if (event.key === "+" || event.key === "=") picture.zoom(2, undefined, undefined, true);
    else if (event.key === "-" || event.key === "_") picture.zoom(0.5, undefined, undefined, true);
    else if (event.key === "0") picture.fit();
    else if (event.key === "1") picture.zoomTo(1);
    else if (event.key === "Escape" && cross !== null) {
      picture.cross = null;
      picture.draw();
      setCross(null);
      event.stopPropagation();
    } else return;
    event.preventDefault();
  };
  if (finest === null) return <p class="leaf-hint">This report has no picture of this leaf.</p>;
  const seen = (range: [number, number], all: number) =>
    range[0] === 0 && range[1] === all - 1 ? whole(all) : `${whole(range[0])} to ${whole(range[1])} of ${whole(all)}`;
  return (
    <div class="tiles">
      <div class="tiles-bar">
        <div class="tiles-buttons" role="group" aria-label="Zoom">
          <button type="button" aria-label="Zoom in" data-testid="zoom-in" aria-disabled={visible?.most ?? false} onClick={() => picture?.zoom(2, undefined, undefined, true)}>+</button>
          <button type="button" aria-label="Zoom out" data-testid="zoom-out" aria-disabled={visible?.fits ?? false} onClick={() => picture?.zoom(0.5, undefined, undefined, true)}>−</button>
          <button type="button" data-testid="zoom-fit" onClick={() => picture?.fit()}>Fit</button>
          <button type="button" aria-label="One pixel for each value" data-testid="zoom-one" onClick={() => picture?.zoomTo(1)}>1:1</button>
        </div>
        <span class="tiles-scale" data-testid="picture-scale">{visible === null ? "" : zoomText(visible.scale)}</span>
      </div>
      <p class="tiles-across"><span dir="ltr">{view.across}</span> → {visible === null || view.layout === "filters" ? "" : seen(visible.columns, view.columns)}</p>
      <div class="tiles-row">
        <p class="tiles-down">{view.rows > 1 && <><span dir="ltr">{view.down}</span> → {visible === null || view.layout === "filters" ? "" : seen(visible.rows, view.rows)}</>}</p>
        <div class="tiles-place" ref={placeRef} style={{ height: `${height}px` }}>
          <canvas
            ref={setCanvas}
            class={visible?.fits === false ? "tiles-canvas tiles-zoomed" : "tiles-canvas"}
            tabIndex={0}
            role="application"
            aria-roledescription="picture that can be zoomed"
            aria-label={`Values of ${path}, ${whole(view.rows)} by ${whole(view.columns)}`}
            aria-describedby="tiles-help"
            data-testid="picture-canvas"
            data-arrived={arrived}
            onKeyDown={keys}
          />
          {!arrived && failed === 0 && <p class="tiles-wait">Reading …</p>}
        </div>
      </div>
      <p class="leaf-hidden" id="tiles-help">
        Arrow keys move the picture, plus and minus zoom, 0 fits it, 1 shows one pixel for each value. Shift and arrow keys move
        a cross hair and read the value under it.
      </p>
      <p class="tiles-readout" data-testid="picture-value" dir="ltr">{spotText(spot, value) || " "}</p>
      <p class="leaf-hidden" aria-live="polite">{spot?.keyboard ? spotText(spot, value) : ""}</p>
      {failed > 0 && (
        <p class="leaf-error" role="alert">
          {arrived ? "Parts of the picture could not be read." : "The picture could not be read."}{" "}
          <button type="button" onClick={() => picture?.retry()}>Try again</button>
        </p>
      )}
      <ScaleBar scale={scale} limit={limit} onLimit={exported ? null : setLimit} />
      {view.note !== "" && <p class="leaf-hint" dir="ltr">{view.note}</p>}
      {scale.note !== null && <p class="leaf-hint" dir="ltr">{scale.note}</p>}
    </div>
  );
}

function sameView(a: Visible, b: Visible): boolean {
  return (
    a.rows[0] === b.rows[0] && a.rows[1] === b.rows[1] && a.columns[0] === b.columns[0] && a.columns[1] === b.columns[1] &&
    a.scale === b.scale && a.fits === b.fits && a.most === b.most
  );
}

function zoomText(scale: number): string {
  if (scale === 0) return "";
  return scale >= 1 ? `${Number(scale.toPrecision(2))} px per value` : `${Number((1 / scale).toPrecision(2))} values per px`;
}

function spotText(spot: Spot | null, value: Value | string | null): string {
  if (spot === null) return "";
  if (value === null) return `row ${spot.row}, column ${spot.column}`;
  if (typeof value === "string") return `row ${spot.row}, column ${spot.column}: ${value}`;
  return value.index === null ? value.text || "between filters" : `[${value.index.join(", ")}] = ${value.text}`;
}

/** The value at a place, asked for when the pointer rests; null while it is not known; a string says why it is not. */
function useValue(source: Source, path: string, layout: string, spot: Spot | null): Value | string | null {
  const [held, setHeld] = useState<{ key: string; value: Value | string } | null>(null);
  const key = spot === null ? "" : `${path}\n${layout}\n${spot.row}\n${spot.column}`;
  useEffect(() => {
    if (spot === null) return undefined;
    let stale = false;
    const keep = (value: Value | string) => {
      if (!stale) setHeld({ key, value });
    };
    const timer = setTimeout(() => {
      new Promise<Value>((resolve) => resolve(source.value(path, layout, spot.row, spot.column))).then(keep, (reason: unknown) =>
        keep(reason instanceof Error ? reason.message : String(reason)),
      );
    }, 80);
    return () => {
      stale = true;
      clearTimeout(timer);
    };
  }, [key, source]);
  return held !== null && held.key === key ? held.value : null;
}

function usePointer(
  canvas: HTMLCanvasElement | null,
  picture: Picture | null,
  setHover: (spot: Spot | null) => void,
  setCross: (spot: Spot | null) => void,
): void {
  useEffect(() => {
    if (canvas === null || picture === null) return undefined;
    const pointers = new Map<number, { x: number; y: number }>();
    let travelled = 0;
    const place = (event: MouseEvent) => {
      const rect = canvas.getBoundingClientRect();
      return { x: event.clientX - rect.left, y: event.clientY - rect.top };
    };
    const hover = (at: { x: number; y: number }) => {
      const spot = picture.at(at.x, at.y);
      setHover(spot === null ? null : { ...spot, keyboard: false });
    };
    const down = (event: PointerEvent) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, place(event));
      if (pointers.size === 1) travelled = 0;
    };
    const move = (event: PointerEvent) => {
      const at = place(event);
      const before = pointers.get(event.pointerId);
      if (before === undefined) {
        if (event.pointerType !== "touch") hover(at);
        return;
      }
      travelled += Math.hypot(at.x - before.x, at.y - before.y);
      if (pointers.size === 1) picture.pan(at.x - before.x, at.y - before.y);
      else if (pointers.size === 2) {
        const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, spot]) => spot);
        if (other !== undefined) {
          const apart = (spot: { x: number; y: number }) => Math.max(1, Math.hypot(spot.x - other.x, spot.y - other.y));
          picture.pan((at.x - before.x) / 2, (at.y - before.y) / 2);
          picture.zoom(apart(at) / apart(before), (at.x + other.x) / 2, (at.y + other.y) / 2);
        }
      }
      pointers.set(event.pointerId, at);
      if (event.pointerType !== "touch") hover(at);
    };
    const up = (event: PointerEvent) => {
      const single = pointers.size === 1 && pointers.delete(event.pointerId);
      pointers.delete(event.pointerId);
      // A click without moving puts the cross hair there: the only way to read values by touch.
      if (!single || travelled > 4 || event.type === "pointercancel") return;
      const at = place(event);
      const spot = picture.at(at.x, at.y);
      if (spot === null) return;
      picture.cross = spot;
      picture.draw();
      setCross({ ...spot, keyboard: false });
    };
    const leave = () => setHover(null);
    const wheel = (event: WheelEvent) => {
      // At the end of the zoom the page scrolls on.
      const { fits, most } = picture.visible;
      if ((event.deltaY > 0 && fits) || (event.deltaY < 0 && most)) return;
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
      // Pinching on a touch pad arrives as wheel with ctrl, in small steps.
      const speed = event.ctrlKey ? 0.01 : 0.0018;
      const at = place(event);
      picture.zoom(Math.exp(-Math.max(-600, Math.min(600, event.deltaY * lines)) * speed), at.x, at.y);
      hover(at);
    };
    const double = (event: MouseEvent) => {
      const at = place(event);
      picture.zoom(event.shiftKey ? 0.5 : 2, at.x, at.y, true);
    };
    canvas.addEventListener("pointerdown", down);
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", leave);
    canvas.addEventListener("wheel", wheel, { passive: false });
    canvas.addEventListener("dblclick", double);
    return () => {
      canvas.removeEventListener("pointerdown", down);
      canvas.removeEventListener("pointermove", move);
      canvas.removeEventListener("pointerup", up);
      canvas.removeEventListener("pointercancel", up);
      canvas.removeEventListener("pointerleave", leave);
      canvas.removeEventListener("wheel", wheel);
      canvas.removeEventListener("dblclick", double);
    };
  }, [canvas, picture]);
}

const DECADES = 4; // how far the slider can lower the limit

function ScaleBar({ scale, limit, onLimit }: { scale: Scale; limit: number; onLimit: ((limit: number) => void) | null }) {
  useTheme(); // the frame of transparent colors follows the theme
  const [typed, setTyped] = useState<string | null>(null);
  const choose = useCallback(
    (value: number) => {
      if (onLimit !== null && Number.isFinite(value) && value > 0) onLimit(Math.min(scale.limit, value));
    },
    [onLimit, scale.limit],
  );
  const lowered = limit < scale.limit;
  const end = `${lowered ? "≥ " : ""}${number(limit)}`;
  const start = scale.signed ? `${lowered ? "≤ " : ""}${number(-limit)}` : "0";
  return (
    <div class="scale" data-testid="picture-colors">
      <div class="scale-row">
        <span>{start}</span>
        <span class="scale-bar" style={{ backgroundImage: `linear-gradient(to right, ${scale.colors.join(", ")})`, backgroundColor: variable("--bg") }} />
        <span>{end}</span>
        <span class="scale-key"><span class="scale-swatch" style={{ backgroundColor: scale.nan }} />NaN</span>
        <span class="scale-key"><span class="scale-swatch" style={{ backgroundColor: scale.infinite }} />infinite</span>
      </div>
      {onLimit !== null && scale.limit > 0 && (
        <div class="scale-row">
          <label class="scale-contrast">
            Contrast
            <input
              type="range"
              min={0}
              max={100}
              step={1}
              value={Math.round((-Math.log10(limit / scale.limit) / DECADES) * 100)}
              aria-valuetext={`limit ${number(limit)}`}
              data-testid="picture-contrast"
              onInput={(event) => {
                setTyped(null);
                choose(scale.limit * 10 ** ((-Number(event.currentTarget.value) / 100) * DECADES));
              }}
            />
          </label>
          <label class="scale-limit">
            Limit
            <input
              type="text"
              inputMode="decimal"
              size={9}
              value={typed ?? String(Number(limit.toPrecision(4)))}
              data-testid="picture-limit"
              onInput={(event) => setTyped(event.currentTarget.value)}
              onChange={(event) => {
                choose(Number(event.currentTarget.value));
                setTyped(null);
              }}
            />
          </label>
          {lowered && <button type="button" onClick={() => choose(scale.limit)}>Reset</button>}
        </div>
      )}
    </div>
  );
}
