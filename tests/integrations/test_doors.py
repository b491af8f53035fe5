"""What a mask hides stays hidden, or the call is refused, whichever way a normalizer is called."""

import pytest
import torch
import torch.nn.functional as F
from reference import randn
from torch.testing import assert_close

from attnorm.attention import build_normalizer
from attnorm.nn import MultiheadAttention, replace_sdpa
from attnorm.nn.functional import attention

pytestmark = pytest.mark.numerical

N, WIDTH, HEADS = 6, 8, 2
ONES = torch.ones(N, N, dtype=torch.bool)
BLOCKS = torch.block_diag(*[torch.ones(2, 2)] * 3) > 0
LATER_PAIR = ONES.tril()
LATER_PAIR[1, 3] = True
ORDERED = {
    "causal": ONES.tril(),
    "causal with a prefix": ONES.tril() | (torch.arange(N) < 3),
    "causal in blocks": ONES.tril() | BLOCKS,
    "from right to left": ONES.triu(),
    "causal with a later pair": LATER_PAIR,
    "causal and padded": ONES.tril() & (torch.arange(N) < 5),
    "causal in an example": torch.stack([ONES, ONES.tril()])[:, None],
    "nearest neighbours": randn(N, N, seed=1).topk(3).values[:, -1:] <= randn(N, N, seed=1),
}
WITHOUT_ORDER = {
    "everything": ONES,
    "blocks": BLOCKS,
    "a window": ONES.triu(-1) & ONES.tril(1),
    "padding of both": (torch.arange(N) < 4) & (torch.arange(N)[:, None] < 4),
}
PADDED = torch.arange(N) < torch.tensor([[N], [4]])  # of two examples
HIDES_KEYS = {
    "each example": PADDED[:, None, None],
    "expanded": PADDED[:, None, None].expand(2, 1, N, N),
    "all examples": PADDED[1].expand(N, N),
    "a window": PADDED[1] & WITHOUT_ORDER["a window"],
}


def heads(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def scores_of(q, k):
    return heads(q) @ heads(k).mT * (WIDTH // HEADS) ** -0.5


def merged(x):
    return x.transpose(1, 2).flatten(2)


def by_function(normalizer, q, k, mask, **options):
    return merged(attention(heads(q), heads(k), heads(k), mask, normalizer=normalizer, **options))


def by_sdpa(normalizer, q, k, mask, **options):
    with replace_sdpa(normalizer, **options):
        return merged(F.scaled_dot_product_attention(heads(q), heads(k), heads(k), attn_mask=mask))


def by_module(normalizer, q, k, mask, **options):
    torch.manual_seed(0)
    module = MultiheadAttention(WIDTH, HEADS, batch_first=True, normalizer=normalizer, **options).double()
    if mask is not None and mask.dim() > 2:
        mask = mask.expand(2, HEADS, q.shape[1], k.shape[1]).flatten(0, 1)
    return module(q, k, k, attn_mask=None if mask is None else ~mask)[0]


def by_normalizer(normalizer, q, k, mask, **options):
    return merged(normalizer(scores_of(q, k), mask, **options) @ heads(k))


def by_masked_scores(normalizer, q, k, mask, **options):
    scores = scores_of(q, k) if mask is None else scores_of(q, k).masked_fill(~mask, -torch.inf)
    return merged(normalizer(scores, **options) @ heads(k))


def by_transformers(normalizer, q, k, mask, **options):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from attnorm.integrations.transformers import convert

    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 1}
    config = transformers.BertConfig(vocab_size=9, **sizes)
    model = convert(transformers.BertModel(config).eval(), {"encoder": type(normalizer)}, **options).double()
    mask = ONES if mask is None else mask  # (B, 1, N, M)
    return model(inputs_embeds=q, attention_mask=mask.expand(2, 1, N, N)).last_hidden_state


DOORS = [by_function, by_sdpa, by_module, by_normalizer, by_masked_scores, by_transformers]
COUPLED = ["dnas", "hnas", "sinkhorn"]


def states(n=N, seed=3):
    return randn(2, n, WIDTH, seed=seed)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", COUPLED)
def test_a_mask_that_hides_the_future_is_refused_if_all_queries_are_coupled(door, name):
    x, normalizer = states(), build_normalizer(name).double()
    for kind, mask in ORDERED.items():
        with pytest.raises(ValueError, match=r"would leak the future.*ordered=False"):
            door(normalizer, x, x, mask)
            pytest.fail(kind)
    for mask in (*WITHOUT_ORDER.values(), None):
        assert door(normalizer, x, x, mask).isfinite().all()
    assert door(normalizer, x, x, ORDERED["nearest neighbours"], ordered=False).isfinite().all()


@pytest.mark.parametrize("door", DOORS)
def test_what_is_not_refused_with_such_a_mask_depends_on_nothing_that_it_hides(door):
    x = states()
    for name, kind in (*(("softmax", kind) for kind in ORDERED), ("dnas_prefix", "causal")):
        normalizer, mask = build_normalizer(name), ORDERED[kind]
        allowed = mask.expand(2, 1, N, N)[:, 0]
        before = door(normalizer, x, x, mask)
        for position in range(N):
            changed = x.clone()
            changed[:, position] += 1
            hidden = ~allowed[:, :, position] & (torch.arange(N) != position)
            assert_close(door(normalizer, changed, changed, mask)[hidden], before[hidden], msg=f"{name}, {kind}")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", HIDES_KEYS)
def test_a_padded_text_is_what_it_is_alone_or_refused(door, kind):
    x, mask, normalizer = states(), HIDES_KEYS[kind], build_normalizer("dnas")
    try:
        padded = door(normalizer, x, x, mask)
    except ValueError as error:
        assert "couples queries, so that padded ones would change the others" in str(error)
        return
    assert door is by_transformers  # where a position that no query sees is padding
    wider = x.clone()
    wider[1, 4:] += 1
    assert_close(door(normalizer, wider, wider, mask)[1, :4], padded[1, :4])


@pytest.mark.parametrize("door", DOORS[:-1])
@pytest.mark.parametrize("name", ["dnas_prefix", "hnas_prefix", "dnas_slack_prefix", "selective", "stick_breaking"])
def test_a_query_beside_the_keys_of_a_cache_has_the_weights_of_the_full_pass_or_is_refused(door, name):
    x, normalizer = states(), build_normalizer(name, **({"heads": HEADS} if "slack" in name else {})).double()
    expected = door(normalizer, x, x, ONES.tril())
    for n in (1, 3):
        for mask in (ONES.tril()[-n:], ONES.tril()[-n:] if n > 1 else None):
            try:
                found = door(normalizer, x[:, -n:], x, mask)
            except ValueError as error:
                assert name != "stick_breaking" or mask is None
                assert ("`step`" in str(error)) == (name != "stick_breaking")
            else:
                assert_close(found, expected[:, -n:])


def test_step_continues_from_a_cache_as_the_page_says():
    x, normalizer = states(), build_normalizer("dnas_prefix")
    state, expected = None, merged(attention(*[heads(x)] * 3, is_causal=True, normalizer=normalizer))
    for n in range(1, N + 1):
        weights, state = normalizer.step(scores_of(x[:, n - 1 : n], x[:, :n]), state=state)
        assert_close(merged(weights @ heads(x[:, :n])), expected[:, n - 1 : n])


def test_leading_axes_broadcast_as_in_torch():
    q, k, v = randn(3, N, 4, seed=1), randn(2, 3, N, 4, seed=2), randn(2, 1, N, 4, seed=3)
    expected = F.scaled_dot_product_attention(q, k, v)
    assert_close(attention(q, k, v), expected)
    wide = [x.expand(2, 3, N, 4) for x in (q, k, v)]
    assert torch.equal(attention(q, k, v, normalizer="dnas"), attention(*wide, normalizer="dnas"))
    few, of_groups = randn(4, N, 4, seed=1), (k[:, :2], v)
    assert_close(
        attention(few, *of_groups, enable_gqa=True), attention(few.expand(2, -1, -1, -1), *of_groups, enable_gqa=True)
    )


@pytest.mark.parametrize("door", DOORS[:-1])
def test_a_mask_without_values_is_one_of_pairs(door):
    normalizer = build_normalizer("dnas").to("meta")
    x = states().to("meta")
    if door is by_module:
        pytest.skip("see test_a_module_on_the_device_meta_has_the_shapes_of_another_one")
    assert door(normalizer, x, x, ONES.tril().to("meta")).shape == (2, N, WIDTH)


@pytest.mark.slow
@pytest.mark.parametrize("door", [by_function, by_sdpa])
def test_compiled_code_refuses_a_mask_that_hides_the_future(door):
    torch.compiler.reset()
    x, normalizer = states(), build_normalizer("dnas")
    compiled = torch.compile(lambda x, mask: door(normalizer, x, x, mask), backend="eager")
    with pytest.raises(ValueError, match="would leak the future"):
        compiled(x, ORDERED["causal with a prefix"])


@pytest.mark.parametrize("door", [by_function, by_normalizer])
def test_a_mask_is_looked_at_once_and_again_if_it_changes(door, monkeypatch):
    x, normalizer, mask, looks = states(), build_normalizer("hnas"), BLOCKS.clone(), []
    plain = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: looks.append(x) or plain(x))
    for _ in range(3):
        door(normalizer.double(), x, x, mask)
    assert len(looks) == 1
    mask[0, 5] = True
    with pytest.raises(ValueError, match="hides the future"):
        door(normalizer, x, x, mask)
