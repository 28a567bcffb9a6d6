"""``jafl.Rule`` itself: two records, whose fields can be given, changed and read one by one too."""

import pytest

import jafl
from jafl import rules
from jafl.specifications import as_specification

FUNCTIONS = (
    lambda params, num_clients: (),
    lambda state, params: params,
    lambda buffer, arrival: (buffer, {}),
    lambda buffer, params: (params, (), {}, True),
)


def remembers(arrival):
    return arrival.update


def test_fields_given_one_by_one_make_the_same_rule_as_the_records():
    single = jafl.Rule(
        *FUNCTIONS, remembers=remembers, memory_precision="int8", needs_start=True, buffer_size=3, linear=True
    )
    memory = jafl.ClientMemoryRequest(remembers, precision="int8")
    requirements = jafl.Requirements(needs_start=True, buffer_size=3, linear=True)
    assert single == jafl.Rule(*FUNCTIONS, memory=memory, requirements=requirements)
    assert hash(single) == hash(jafl.Rule(*FUNCTIONS, memory=memory, requirements=requirements))
    assert single.remembers is remembers and single.memory_precision == "int8"
    assert single.recalls is None and single.fold_recalled is None
    assert (single.needs_start, single.buffer_size, single.linear) == (True, 3, True)
    assert (single.initial_round, single.additive) == (False, False)


def test_a_rule_without_memory_reads_as_one():
    rule = jafl.Rule(*FUNCTIONS)
    assert rule.memory is None and rule.requirements == jafl.Requirements()
    assert (rule.remembers, rule.recalls, rule.fold_recalled, rule.memory_precision) == (
        None,
        None,
        None,
        "full",
    )
    assert jafl.Rule(*FUNCTIONS, remembers=None, memory_precision="full") == rule


def test_replace_changes_fields_of_the_records_and_keeps_the_others():
    ace = rules.ace(memory_precision="bfloat16").build()
    changed = ace._replace(needs_start=True, remembers=remembers)
    assert changed.memory == ace.memory._replace(remembers=remembers)
    assert changed.requirements == ace.requirements._replace(needs_start=True)
    assert changed[:5] == ace[:5]
    assert ace._replace(remembers=None).memory is None
    assert ace._replace(memory=None, requirements=jafl.Requirements(linear=True)).linear
    assert ace._replace() == ace


def test_a_whole_step_is_gone_where_its_parts_change():
    rule = jafl.Rule(*FUNCTIONS, buffer_size=2, whole_step=lambda state, params, arrivals: None)
    assert rule._replace(buffer_size=3).whole_step is rule.whole_step
    for name, function in zip(("begin", "fold", "finish"), FUNCTIONS[1:], strict=True):
        assert rule._replace(**{name: function}).whole_step is None
        assert rule._replace(**{name: function}, whole_step=remembers).whole_step is remembers


def test_an_unknown_field_is_refused():
    with pytest.raises(TypeError, match="needs_begin"):
        jafl.Rule(*FUNCTIONS, needs_begin=True)
    with pytest.raises(TypeError, match="needs_begin"):
        jafl.Rule(*FUNCTIONS)._replace(needs_begin=True)


def test_rules_of_the_same_functions_are_one_program():
    """A rule that is passed as it is has no numbers of its own: it is part of the compiled program."""
    leaves, static = as_specification(jafl.Rule(*FUNCTIONS)).tree_flatten()
    assert leaves == [] and static == as_specification(jafl.Rule(*FUNCTIONS, linear=False)).tree_flatten()[1]
