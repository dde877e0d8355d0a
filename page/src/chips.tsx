// Filters with counts, of which one is chosen.

export interface Chip {
  value: string;
  text: string;
  count: number | null;
  look?: string; // a class for its color
}

export function Chips(props: { label: string; chips: Chip[]; value: string; onChoose(value: string): void }) {
  return (
    <div class="chips" role="group" aria-label={props.label}>
      {props.chips.map((chip) => (
        <button
          key={chip.value}
          type="button"
          class={`chip ${chip.look ?? ""}`}
          aria-pressed={chip.value === props.value}
          onClick={() => props.onChoose(chip.value === props.value ? "" : chip.value)}
        >
          <bdi dir="ltr">{chip.text}</bdi>
          {chip.count !== null && <span class="count">{chip.count.toLocaleString("en-US")}</span>}
        </button>
      ))}
    </div>
  );
}
