"""Functions written by a program."""

from aftershock.workloads.kafka.wire.schema import Function


def test_lines_speak_of_bound_things() -> None:
    """A function gets its parameters, and by a name of its own each object that was bound, equal ones included."""
    function = Function("(number)")
    first, second = function.bind([1]), function.bind([1])
    assert first != second
    function.add(f"{first}.append(number)", "if number > 2:", f"    return {first}", f"return {second}")
    made = function.compile()
    assert [1] == made(2)
    assert [1, 2, 3] == made(3)


def test_functions_share_no_names() -> None:
    """What one binds is not seen by another."""
    one, other = Function("()"), Function("()")
    one.add(f"return {one.bind('one')}")
    other.add(f"return {other.bind('other')}")
    assert ("one", "other") == (one.compile()(), other.compile()())
