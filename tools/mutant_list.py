"""The changes of `tools/mutants.py`: mistakes that would be silent, such as a lost tie, a leaf that is not filled, a
wrong group or a checksum that is not compared. Messages and fast paths are left out."""

from collections.abc import Iterator
from typing import NamedTuple


class Mutant(NamedTuple):
    """A change of a module: `old`, which occurs exactly once in it, becomes `new`. `tests` are the nearest tests, which
    a contributor would run after changing the module."""

    module: str
    old: str
    new: str
    tests: tuple[str, ...]


def _mutants(module: str, tests: str, *changes: tuple[str, str]) -> Iterator[Mutant]:
    """The changes of one module. `tests` are paths below `tests/`, separated by spaces."""
    paths = tuple(f"tests/{path}" for path in tests.split())
    return (Mutant(module, old, new, paths) for old, new in changes)


_CORE = (
    *_mutants(
        "core/walk.py",
        "core/test_walk.py core/test_tree.py",
        # A module on a cycle that is used twice is walked again and again.
        ("    cyclic.update(between, (first,))\n", ""),
        ("cyclic.update(between, (first,))", "cyclic.add(first)"),
        ("                columns.further_rows.setdefault(first, []).append(row)\n", ""),
        # A buffer that is persistent under its second name only is not saved.
        ('kinds[leaf] = "recorded" if "recorded" in others else "buffer"', "pass"),
        # Buffers over the same memory are not tied.
        ('    if columns.views or set(kinds) - {"parameter"}:', "    if columns.views:"),
        # State of an optimizer that comes before its model has numbers for names.
        ("        if paths:\n", "        if not paths:\n"),
    ),
    *_mutants(
        "core/walk.py",
        "share/test_untie.py share/test_survival.py::test_an_overwritten_tie_is_reported_by_the_next_walk",
        ("    find_undone(columns)\n", ""),
    ),
    *_mutants(
        "core/memory/overlaps.py",
        "share/test_survival.py::test_an_overwritten_tie_is_reported_by_the_next_walk "
        "share/test_survival.py::test_a_wrapper_around_one_name_keeps_the_tie",
        ("lost = leaf not in columns.further_rows and len(rows) == 1", "lost = True"),
        ("lost, path = columns.ties.get(row, row) != leaf, columns.row_path(row)", "lost, path = False, source"),
    ),
    *_mutants(
        "core/memory/overlaps.py",
        "core/test_tree.py core/test_memory.py",
        ("            rows = columns.rows_of(leaf)\n", "            rows = [leaf]\n"),
        ("            columns.further_rows.pop(leaf, None)\n", ""),
    ),
    *_mutants(
        "core/pairing/row_pairs.py",
        "checkpoint/test_planning.py",
        ('[row for row in t.rows if columns.row_kinds[columns.ties.get(row, row)] != "transient"]', "t.rows"),
        ('columns.row_kinds[columns.ties.get(row, row)] != "transient"', 'columns.row_kinds[row] != "transient"'),
        ("spent.add(self.source.leaf(self.source.rows[partner]))", "pass"),
        (
            "                if leaf in columns.further_rows:\n",
            "                if leaf not in columns.further_rows:\n",
        ),
        ("                if leaf in columns.further_rows:\n", "                if True:\n"),
        ("            if columns.row_op(row).slices is None:\n", "            if True:\n"),
        (
            "self.applied = [proposal for proposal in self.proposals if proposal.certain]",
            "self.applied = list(self.proposals)",
        ),
    ),
    *_mutants(
        "core/pairing/row_matching.py",
        "checkpoint/test_planning.py",
        # One source fills two leaves, or one of two sources is guessed.
        ("if times_targets[bare] == times_sources[bare] == 1:", "if times_sources[bare] == 1:"),
        ("if times_targets[bare] == times_sources[bare] == 1:", "if times_targets[bare] == 1 and bare in by_bare:"),
        ("    if len(by_name) < len(names):\n", "    if False:\n"),
    ),
    *_mutants(
        "core/query.py",
        "core/test_query.py",
        ("if columns.ties.get(row, row) not in mine)", "if row not in mine)"),
        ("if columns.ties.get(row, row) in leaves)", "if row in leaves)"),
    ),
    *_mutants(
        "core/memory/ops.py",
        "core/test_memory.py share/test_ties.py",
        # Two parameters over one memory become one leaf.
        ('            if how == "inside" and not region.own_gradient:', '            if how == "inside":'),
        ("        reach += (size - 1) * stride\n", ""),
    ),
    *_mutants(
        "core/pairing/leaf_pairs.py",
        "inspect/test_diff_ties.py inspect/test_diff.py::test_a_rename_may_be_a_mapping_patterns_a_function_or_auto",
        ('if known and view is not None and known & {"", view}:', "if known:"),
        ("paired.union(pairing.left_out)", "paired"),
    ),
    *_mutants(
        "core/columns.py",
        "core/test_tree.py share/test_ties.py",
        ("sorted([*self.further_rows.get(leaf, ()), *rows])", "sorted(rows)"),
        ("kinds = [self.row_kinds[self.ties.get(row, row)] for row in rows]", "pass"),
    ),
)

_SHARE = (
    *_mutants(
        "share/places.py",
        "share/test_parts.py share/test_untie.py",
        # Where the tie of a part is recorded: at its root and below, or above it if names are outside.
        ("tree.root if inside.issuperset(groups[row]) else 0", "tree.root"),
        ("tree.root if inside.issuperset(groups[row]) else 0", "0"),
        ("if row in inside or _is_kept_with(columns, row, places)]", "if row in inside]"),
        ('return rows if rows and columns.row_op(rows[0]) == "same" else []', "return rows"),
        ("    return tying.tied_elsewhere(place_of(columns, row), known)", "    return []"),
        ("    while node >= top:\n", "    while node > top:\n"),
    ),
    *_mutants(
        "share/keep_ties.py",
        "share/test_parts.py share/test_survival.py::test_letting_go_leaves_no_trace",
        ("places = None if t.is_whole else [place_of(columns, row) for row in t.rows]", "places = None"),
        ("            leaves.append(leaf)\n", "            pass\n"),
        ("        if not inside.intersection(all_rows):\n            continue\n", ""),
    ),
    *_mutants(
        "share/untie.py",
        "share/test_untie.py",
        ("        if len(rows_below(t, node)) < len(range(*columns.row_ranges[node])):\n", "        if False:\n"),
        ("if len(rows_below(t, node)) < len(range(", "if len(t.rows_below(node)) == len(range("),
        ("        if outer != columns.node_text(node):\n", "        if False:\n"),
        ("for row in _tied_outside(columns, node) if row in chosen]", "for row in _tied_outside(columns, node)]"),
        (
            "[row for row in tied if any(name not in inside for name in ",
            "[row for row in tied if any(True for name in ",
        ),
        ("        if not stays:\n            chosen", "        if True:\n            chosen"),
        (" or any(row in rows for rows in columns.undone.values()):", ":"),
        ("node in columns.repeats or node in columns.repeats.values()", "node in columns.repeats"),
    ),
    *_mutants(
        "share/tie.py",
        "share/test_tie.py",
        ('for row in rows if columns.row_kinds[row] != "transient"}', "for row in rows}"),
        ("op = columns.row_op(source.row)  # to a view: the same view of its leaf", "pass"),
        ("        return part % size\n", "        return part\n"),
        ("[(target_rows[name], columns.ties.get(row, row)) for", "[(target_rows[name], row) for"),
    ),
    *_mutants(
        "share/tie_requests.py",
        "share/test_tie.py share/test_untie.py",
        ("            _check_tied_by(columns, target, source, op)\n", ""),
        ("        tied_to = tied_to or names_outside(columns, target)\n", ""),
        ("    if target_spec.trainable != source_spec.trainable:\n", "    if False:\n"),
        ('        if keep == "target" and not same_bits(values[0], value):\n', "        if False:\n"),
    ),
    *_mutants(
        "share/find.py",
        "share/test_ties.py",
        ("            if rows and frozenset(leaves) not in shared:\n", "            if rows:\n"),
        ("        elif len(places) > 1:\n", "        elif len(places) > 2:\n"),
        ("        if len(stepped) > 1:\n", "        if len(stepped) > 2:\n"),
    ),
    *_mutants(
        "share/equal.py",
        "share/test_ties.py",
        ("    if shape == second_shape and streams.same_bytes(*pieces):", "    if streams.same_bytes(*pieces):"),
        ("        rows = [row for row in rest if row not in ops]\n", "        rows = []\n"),
    ),
    *_mutants(
        "share/shard_units.py",
        "share/test_shard_units.py",
        ('above[0] == source if columns.row_op(row) == "same" else source in above', "source in above"),
    ),
)

_CHECKPOINT = (
    *_mutants(
        "checkpoint/planning/restored_ties.py",
        "checkpoint/test_loading.py",
        # A leaf that keeps its own values is tied to one that is loaded, or two names that are tied are tied again.
        ("        if leaf == base_leaf or not {leaf, base_leaf} <= self._fed:\n            return\n", ""),
        ("if leaf == base_leaf or not {leaf, base_leaf} <= self._fed:", "if leaf == base_leaf:"),
        ("if leaf == base_leaf or not {leaf, base_leaf} <= self._fed:", "if not {leaf, base_leaf} <= self._fed:"),
        ("        if id(columns.current(target)) in self._stepped:\n", "        if False:\n"),
    ),
    *_mutants(
        "checkpoint/planning/leaf_plan.py",
        "checkpoint/test_loading.py checkpoint/test_planning.py",
        ("if filling.order is not None or not is_same_leaf(", "if filling.order is not None and not is_same_leaf("),
        ("if filling.order is not None or not is_same_leaf(", "if not is_same_leaf("),
        ("    taken -= {leaf(row) for row in unused}\n", ""),
        (
            "        if not (cast and same_kind and is_castable(facts.spec.dtype)):\n",
            "        if not (cast and is_castable(facts.spec.dtype)):\n",
        ),
    ),
    *_mutants(
        "checkpoint/loading/load_steps.py",
        "checkpoint/test_loading.py checkpoint/test_casts.py",
        ("array = Copied(copier.stored_values(copy).copy())", "array = Copied(copier.stored_values(copy))"),
        ("        _put_outside(load, put)\n", ""),
        ("        home.capability(Loading).mark_written([copy.target for copy in of_home])\n", "        pass\n"),
    ),
    *_mutants(
        "checkpoint/loading/agreement.py",
        "checkpoint/test_loading.py",
        ("for tie in plan.restored_ties if _holds(plan, source, tie)]", "for tie in plan.restored_ties]"),
    ),
    *_mutants(
        "checkpoint/loading/load.py",
        "checkpoint/test_several.py checkpoint/test_casts.py",
        ("    check_overlaps(loads)\n", ""),
        ("            check_parts(t, plans)\n", ""),
    ),
    *_mutants(
        "checkpoint/loading/multiple_sources.py",
        "checkpoint/test_several.py",
        ("    return same_values(*arrays)", "    return True"),
    ),
    *_mutants(
        "checkpoint/saving/save.py",
        "checkpoint/test_damage.py",
        (
            "checked_reads.verify_arrays([(item.name, value) for item, value in named if isinstance(value, Stored)])",
            "del named",
        ),
    ),
    *_mutants(
        "checkpoint/saving/collecting.py",
        "checkpoint/test_saving.py checkpoint/test_plain_values.py",
        ("            bases.setdefault(columns.ties.get(row, row), row)\n", "            pass\n"),
        (
            "        if base is not None and row != base and op.is_described:\n",
            "        if base is not None and row != base:\n",
        ),
        ("            value = copied(value)  # so", "            copied(value)  # so"),
    ),
    *_mutants(
        "checkpoint/saving/saved_content.py",
        "checkpoint/test_saving.py",
        (' and facts.kind != "state" and is_float(own)', " and is_float(own)"),
        ("        check_circles(columns, t.root)\n", "        pass\n"),
    ),
    *_mutants(
        "checkpoint/planning/optimizer_plan.py",
        "checkpoint/test_optimizer_state.py",
        ("            planned.turns[place] = [key for key, _ in same_shape], order\n", "            pass\n"),
        ("            planned.saved.pop(place, None)\n", ""),
        ("    _check_order(plan, planned, target)\n", ""),
        ("    _check_kind(plan, planned, source_prefix, source, target)\n", ""),
        ("    _check_needs(plan, planned, target)\n", ""),
    ),
    *_mutants(
        "checkpoint/planning/optimizer_places.py",
        "checkpoint/test_optimizer_state.py",
        ("        if theirs != ours:\n", "        if False:\n"),
    ),
    *_mutants(
        "checkpoint/loading/optimizer_states.py",
        "checkpoint/test_optimizer_state.py",
        (
            "checked_reads.fill(self._requests, self._source.verifies, self._progress)",
            "checked_reads.fill(self._requests, False, self._progress)",
        ),
        ("            stepping.exchange(optimizer, new)\n", "            pass\n"),
        ("            if id(columns.current(row)) not in stepped:\n", "            if False:\n"),
    ),
    *_mutants(
        "checkpoint/planning/value_plan.py",
        "checkpoint/test_plain_values.py",
        ("    _refuse_contradictions(plan, wanted)\n", ""),
        ("if plan.source.is_file else _copied(plain.value)", "if plan.source.is_file else plain.value"),
    ),
)

_ITERATE = (
    *_mutants(
        "iterate/groups.py",
        "iterate/test_groups.py",
        ("return True if is_inexact(spec.dtype) else None", "return True"),
        ("return True if is_inexact(spec.dtype) else None", "return None"),
        ('    if facts.kind != "parameter":\n        return None\n', ""),
        ("if all(same_plain(option, new[name]) for name, option in options.items()):", "if True:"),
        ("            leaves.sort(key=None if order is None else order.__getitem__)\n", "            pass\n"),
    ),
    *_mutants(
        "iterate/cascade.py",
        "iterate/test_groups.py",
        ("{**({} if resets else before.options), **new}", "{**new, **({} if resets else before.options)}"),
        ("zip(sets, rule_numbers, strict=True) if number == last]", "zip(sets, rule_numbers, strict=True)][:1]"),
        (
            "[leaf for leaf in first_uncovered if leaf not in covered] if covered else first_uncovered",
            "first_uncovered",
        ),
        ("                    raise self._disagreement(rows, sets, option)\n", "                    deciding = sets\n"),
    ),
    *_mutants(
        "iterate/presets.py",
        "iterate/test_advice.py iterate/test_groups.py iterate/test_decay_rules.py",
        ("leaves.update(columns.ties.get(row, row) for row, undecayed", "leaves.update(row for row, undecayed"),
        ("sum(size > 1 for size in shape) > 1", "len(shape) > 1"),
        ("self._decay**place.below_top", "self._decay ** (place.below_top + 1)"),
    ),
    *_mutants(
        "iterate/depths.py",
        "iterate/test_groups.py iterate/test_blocks.py iterate/test_advice.py",
        ("top if row >= blocks[-1].last else bisect_right(starts, row)", "bisect_right(starts, row)"),
        ("    for first, last, number in beside:\n", "    for first, last, number in ():\n"),
    ),
    *_mutants(
        "iterate/freezing.py",
        "iterate/test_freeze.py",
        ("        _check_memory(columns, set(parameters))\n", "        pass\n"),
        ("columns.home(owner).capability(Freezing).hold_buffers(owner, not trainable)", "pass"),
    ),
    *_mutants(
        "iterate/clipping.py",
        "iterate/test_clip.py",
        (
            "        together = math.hypot(*[norms[position] for position in positions])\n",
            "        together = math.hypot(*norms)\n",
        ),
        ("            if leaf in matched_by:\n", "            if False:\n"),
        ("len(factors) == 1 else factors[start : start + count])", "len(factors) == 1 else factors[:count])"),
    ),
    *_mutants(
        "iterate/averaging.py",
        "iterate/test_average.py",
        ("part.move(part_values, weight if part.is_averaged else 1.0)", "part.move(part_values, weight)"),
        ("            part.move(part_values, 1.0)\n", "            part.move(part_values, 0.5)\n"),
        ("walked.node_parents, walked.ties, ", "walked.node_parents, "),
    ),
    *_mutants(
        "iterate/flat.py",
        "iterate/test_flat.py",
        ("        if packed.intersection(members):\n", "        if False:\n"),
        ("    _follow(columns, followers)\n    made", "    made"),
    ),
    *_mutants(
        "iterate/init_jobs.py",
        "iterate/test_initialize.py",
        ("    _check_memory(columns, {leaf for leaf, *_ in chosen})\n", ""),
        ("        return of_parameters or places\n", "        return places\n"),
    ),
)

_FILES = (
    *_mutants(
        "files/record.py",
        "checkpoint/test_damage.py",
        # A damaged header makes the file look like one of another program, without ties and checksums.
        ("        if source.verify:\n            raise\n        return False\n", "        return False\n"),
        ("        if source.verify:\n            raise\n        return False\n", "        raise\n"),
        ("        if source.verify:\n            raise\n", "        if not source.verify:\n            raise\n"),
        ("text[lead:at] == begin or text[at : at + len(MARK)] == MARK.encode()", "text[lead:at] == begin"),
    ),
    *_mutants(
        "files/record.py",
        "checkpoint/test_shards.py checkpoint/test_saving.py",
        ("        self.kinds |= part.kinds\n", ""),
        ("        if name in content:\n            continue\n", ""),
    ),
    *_mutants(
        "files/folders/weight_files.py",
        "files/test_folders.py",
        # What a killed save left behind hides a checkpoint, or is taken for one.
        ("series = [file for file in series if not _OWN_SHARD.fullmatch(file.names[0])]", "pass"),
        ("series = [file for file in series if not _OWN_SHARD.fullmatch(file.names[0])]", "series = []"),
        ("    if indexes or files:  # unless", "    if True:  # unless"),
        ("    if indexes or files:  # unless", "    if indexes:  # unless"),
        ("    if indexes or files:  # unless", "    if files:  # unless"),
        ('same = [file for file in same if file.suffix != ".bin"]', "pass"),
        ("    if is_ours and _is_ours(folder, single):\n", "    if is_ours:\n"),
    ),
    *_mutants(
        "files/folders/shards.py",
        "checkpoint/test_shards.py files/test_folders.py files/test_formats.py",
        ("            if seals and shard.seal != seals[name] and folder.verify:\n", "            if False:\n"),
        ("        if merged.shard_of[key] != shard:\n", "        if False:\n"),
        ("{key: value for key, value in merged.content.items() if key in weights}", "dict(merged.content)"),
        ("    merged.unbound = len(names) - merged.bound\n", "    merged.unbound = 0\n"),
    ),
    *_mutants(
        "files/checksums.py",
        "files/test_checksums.py",
        ("if checksum != self._sums[start // size + number]:", "if checksum != self._sums[number]:"),
        ("        return [] if crc == self._expected.wanted else [0]", "        return []"),
        ("        crc = zlib.crc32(self._expected.before)\n", "        crc = 0\n"),
    ),
    *_mutants(
        "files/reading/checked_reads.py",
        "checkpoint/test_damage.py files/test_checksums.py "
        "checkpoint/test_loading.py::test_a_part_of_a_damaged_leaf_is_not_taken",
        ("transfers, progress)\n    raise_damage(passes)\n", "transfers, progress)\n"),
        ("verify_storages(before.values(), lambda", "str(lambda"),
    ),
    *_mutants(
        "files/reading/checked_reads.py",
        "checkpoint/test_faults.py::test_a_file_that_is_changed_while_it_is_loaded_is_an_error",
        ('raise FileError(f"{shown_file(source.name)} was changed while it was being read; open it again")', "pass"),
    ),
    *_mutants(
        "files/arrays/subarrays.py",
        "files/test_subarrays.py",
        (
            "min(-(-high // sums.piece) * sums.piece, storage.nbytes)",
            "min(high // sums.piece * sums.piece, storage.nbytes)",
        ),
        ("        return outer.start + part  # type", "        return part  # type"),
    ),
    *_mutants(
        "files/formats/safetensors.py",
        "files/test_safetensors.py checkpoint/test_saving.py",
        ("    if len(mapping) < len(pairs):\n", "    if False:\n"),
        ("dict(sorted(arrays.items(), key=lambda item: item[1].storage.start))", "dict(arrays.items())"),
    ),
    *_mutants(
        "files/writing/destination.py",
        "checkpoint/test_saving.py",
        ("opened.content.keys() != arrays or plain_names != values:", "opened.content.keys() != arrays:"),
    ),
    *_mutants(
        "files/writing/writer.py",
        "files/test_writer.py checkpoint/test_saving.py",
        ("                self._check_names()\n", ""),
        ("                if self._check_staged is not None:\n", "                if False:\n"),
    ),
    *_mutants(
        "files/folders/rank_files.py",
        "files/test_rank_files.py",
        ("if other is not box and not _same_bytes(other.array, box.array):", "if False:"),
        ("if same_form and all(_same_bytes(first, value) for value in values[1:]):", "if same_form:"),
    ),
)

_INSPECT = (
    *_mutants(
        "inspect/diff/leaf_changes.py",
        "inspect/test_diff.py inspect/test_diff_ties.py",
        ("[by_row[row] for row in sorted(by_row)]", "list(by_row.values())"),
        ("every = kinds | tied.kinds if tied.kinds else kinds", "every = kinds"),
    ),
)

MUTANTS: tuple[Mutant, ...] = (*_CORE, *_SHARE, *_CHECKPOINT, *_ITERATE, *_FILES, *_INSPECT)
