import pytest

from fedprompt.core.errors import UserError
from fedprompt.datasets import parse_partition


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("domains:m=2", "domains:m=2"),
        ("domains: clients=12 , m=2", "domains:m=2,clients=12"),
        ("domains:m=2,assignment=cyclic,shots=0", "domains:m=2"),
        (
            "domains:unseen=half,assignment=random_regular,m=1",
            "domains:m=1,unseen=half,assignment=random_regular",
        ),
        ("classes:s=10", "classes:s=10,clients=100"),
        ("classes:clients=20,s=5,shots=16", "classes:s=5,clients=20,shots=16"),
        ("dirichlet:alpha=.50", "dirichlet:alpha=0.5,clients=100"),
        ("dirichlet:alpha=1,clients=20,min_size=2", "dirichlet:alpha=1.0,clients=20,min_size=2"),
        ("disjoint:", "disjoint:clients=10"),
        ("disjoint:rule=public", "disjoint:clients=10,rule=public"),
        ("domain-dirichlet:alpha=0.3,clients=5", "domain-dirichlet:alpha=0.3,clients=5"),
        ("domains:m=1,imbalance=.1", "domains:m=1,imbalance=0.1"),
        ("client-lt:alpha=0.5,leak=3,spec=1", "client-lt:alpha=0.5,clients=30,spec=1.0"),
    ],
)
def test_text_is_canonical(text: str, canonical: str) -> None:
    spec = parse_partition(text)
    assert str(spec) == canonical
    assert parse_partition(canonical) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("domain:m=2", "unknown partition 'domain'. Did you mean 'domains'"),
        ("", "Examples: domains:m=2"),
        ("domains:n=2", "unknown key of partition 'domains' 'n'"),
        ("classes:shot=2,s=1", "Did you mean 'shots'"),
        ("domains", "lacks m="),
        ("domains:m", "write m=VALUE once"),
        ("domains:m=1,m=2", "write m=VALUE once"),
        ("domains:m=two", "m='two' is not a whole number"),
        ("domains:m=1.5", "m='1.5' is not a whole number"),
        ("domains:m=0", "m=0 is too small; it must be at least 1"),
        ("classes:s=10,clients=0", "clients=0 is too small"),
        (
            "dirichlet:alpha=1,clients=1000000000000",
            "clients=1000000000000 is too large; it must be at most 1000000000",
        ),
        (f"domains:m=1,shots={'9' * 4000}", "is too large"),
        ("classes:s=10,shots=-1", "shots=-1 is too small; it must be at least 0"),
        ("domains:m=1,assignment=cyclical", "did you mean 'cyclic'? allowed: cyclic, random_regular"),
        ("dirichlet:alpha=0,clients=5", "alpha=0.0 must be a finite number above 0"),
        ("dirichlet:alpha=nan", "alpha=nan must be a finite number above 0"),
        ("dirichlet:alpha=x", "alpha='x' is not a number"),
        ("classes:s=10,clients=1,unseen=half", "needs at least 2 clients"),
        ("domains:m=1,imbalance=0", "imbalance=0.0 must be above 0 and at most 1"),
        ("domains:m=1,imbalance=100", "imbalance=100.0 must be above 0 and at most 1"),
        ("client-lt:alpha=1,spec=2", "spec=2.0 must be from 0 to 1"),
        ("client-lt:alpha=1,leak=-1", "leak=-1.0 must be from 0 to"),
        ("client-lt:alpha=1,leak=nan", "leak=nan must be from 0 to"),
        ("client-lt:alpha=1,clients=1", "leaves 0 head clients"),
        ("client-lt:alpha=1,tail=0", "leaves 30 head clients"),
    ],
)
def test_bad_text_gets_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_partition(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
