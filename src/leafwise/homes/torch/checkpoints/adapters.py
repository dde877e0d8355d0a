"""How PEFT stores adapters: without the name of the adapter, and without the base model.

PEFT itself says which leaves of a model belong to an adapter and what they are called in a file.
"""

import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from leafwise.core.capabilities.converting import Reading
from leafwise.core.roles.recipes import Recipe, Shape, Taken

LIBRARY = "PEFT"
_OUTER = "base_model.model."  # what PEFT puts before the names of the base model
_PROMPTS = "prompt_embeddings"
Shapes = Mapping[str, Shape | None]


def readings(model: Any, stored: Shapes, wanted: Shapes) -> list[Reading]:
    """The checkpoint as that of the base model, and as one of the active adapter."""
    active = _active(model)
    found = [_base(model, stored, wanted)]
    if len(active) > 1:
        several = ", ".join(active)
        why = f'the model has several active adapters ({several}); activate one: model.set_adapter("{active[0]}")'
        names, _ = _names(model, active[0], wanted)
        return [*found, Reading(LIBRARY, {}, refused=dict.fromkeys([*filter(names.get, stored)][:1], why))]
    for adapter in active:
        live_names, refused = _names(model, adapter, wanted)
        recipes: dict[str, Recipe] = {}
        for name, shape in stored.items() if live_names else ():
            live = live_names.get(name, live_names.get(name.removeprefix(_OUTER), name))
            if live in wanted and shape is not None and live not in recipes:
                recipes[live] = Taken(name, shape)
        keeps = frozenset(wanted.keys() - set(live_names.values()) - recipes.keys())
        what = f'the checkpoint is an adapter, which is loaded into "{adapter}", the active one'
        not_loaded = {name: why for name, why in refused.items() if name in stored}
        found += [Reading(LIBRARY, recipes, keeps, what, not_loaded)] if live_names else []
    return found


def _base(model: Any, stored: Shapes, wanted: Shapes) -> Reading:
    """The checkpoint as that of the base model, whose layers are inside those of PEFT. Layers of which the model has a
    trained copy, too (`modules_to_save`), have no counterpart: which of the two is meant is not known."""
    of_adapters = {name for name in wanted if not model.peft_config.keys().isdisjoint(name.split("."))}
    live_names = {name.removeprefix(_OUTER).replace(".base_layer.", "."): name for name in wanted}
    recipes: dict[str, Recipe] = {
        live_names[name]: Taken(name, shape)
        for name, shape in stored.items()
        if live_names.get(name, name) != name and shape is not None and live_names[name] not in of_adapters
    }
    what = "the checkpoint is one of the base model, without adapters"
    return Reading(LIBRARY, recipes, frozenset(of_adapters), what)


def _active(model: Any) -> list[str]:
    """The names of the active adapters."""
    active = getattr(model, "active_adapters", ())  # a list in PEFT, a method in transformers
    return [name for name in (active() if callable(active) else active) if name in model.peft_config]


def _names(model: Any, adapter: str, wanted: Shapes) -> tuple[dict[str, str], dict[str, str]]:
    """The names of an adapter in the model, by their names in a file; and names that cannot be loaded, with reasons."""
    config = model.peft_config[adapter]
    if getattr(config, "is_prompt_learning", False):
        return _prompt_names(adapter, wanted)
    state = {name: tensor for name, tensor in model.state_dict().items() if name in wanted}
    by_identity = {id(tensor): name for name, tensor in state.items()}
    before = dict(vars(config))  # PEFT changes a config while it collects the names
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Without embeddings, which keep their names: PEFT may ask a server whether they were resized.
            saved = import_module("peft").get_peft_model_state_dict(
                model, state_dict=state, adapter_name=adapter, save_embedding_layers=False
            )
    except Exception:
        return {}, {}  # a kind of adapter that cannot be saved
    finally:
        vars(config).clear()
        vars(config).update(before)
    without_adapter = {_without(name, adapter): name for name in wanted if f".{adapter}" in name}
    names = {name: by_identity.get(id(tensor), without_adapter.get(name, "")) for name, tensor in saved.items()}
    computed = {name: "PEFT computes it from other values when it saves" for name, live in names.items() if not live}
    return {name: live for name, live in names.items() if live}, computed


def _without(name: str, adapter: str) -> str:
    """A name without the last entry that is the name of the adapter.

    >>> _without("q.lora_A.default.weight", "default")
    'q.lora_A.weight'
    """
    before, _, after = f"{name}.".rpartition(f".{adapter}.")
    return f"{before}.{after}".removesuffix(".")


def _prompt_names(adapter: str, wanted: Shapes) -> tuple[dict[str, str], dict[str, str]]:
    """Prompts are stored under a name of their own, as the result of the prompt encoder."""
    prefix = f"prompt_encoder.{adapter}."
    parts = [name.removeprefix(prefix) for name in wanted if name.startswith(prefix)]
    if "embedding.weight" not in parts:
        return {}, {}
    names = {part: prefix + part for part in parts if "." not in part} | {_PROMPTS: f"{prefix}embedding.weight"}
    computed = [part for part in parts if "." in part and part != "embedding.weight"]
    if computed:
        why = f"it is the result of {prefix}{computed[0]} and others, which cannot be computed from it"
        return names, {_PROMPTS: why}
    return names, {}
