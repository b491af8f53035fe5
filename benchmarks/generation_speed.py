"""HeadlineTask a second, greedy and with a beam of 4, against `transformers`. Run by `training_speed.py`."""

from argparse import Namespace
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import timing
from speed import rates

LENGTH = 12  # tokens of every headline, so that all searches make the same number of steps
BEAMS = (1, 4)


def batches(cfg: timing.Settings, table, beams: int) -> list:
    """Padded articles, int (B, N), in batches as `attnorm.tasks.pairs.write_texts` makes them."""
    import numpy as np

    from attnorm.data.featurizer import pad
    from attnorm.data.sampler import cut_by_tokens

    lengths = np.array([(len(ids) + 1, LENGTH) for ids in table["source"]])
    order = np.argsort(lengths[:, 0], kind="stable")
    cuts = cut_by_tokens(lengths[order], cfg.data.batch_tokens // beams)
    groups = [table[order[start:stop].tolist()]["source"] for start, stop in pairwise(cuts)]
    return [pad([[*ids, timing.EOS] for ids in group], timing.PAD) for group in groups]


def ours_generates(model, beams: int) -> Callable:
    """source (B, N) -> B headlines, lists of token ids."""
    from attnorm.models.generation import Decoding, SpecialTokens, generate

    special = SpecialTokens(timing.PAD, timing.BOS, timing.EOS)
    decoding = Decoding(beam_size=beams, min_length=LENGTH, max_length=LENGTH)
    return lambda source: generate(model, source, special, decoding)


def peer_generates(peer, beams: int) -> Callable:
    """The same by `transformers`; its maximum counts the end token, which is forced there as ours is."""
    import torch

    settings = {
        "num_beams": beams,
        "do_sample": False,
        "use_cache": True,
        "min_new_tokens": LENGTH,
        "max_new_tokens": LENGTH + 1,
        "length_penalty": 1.0,
        "forced_eos_token_id": timing.EOS,
        "suppress_tokens": [timing.PAD, timing.BOS],
    }

    @torch.no_grad()
    def generate(source):
        found = peer.generate(input_ids=source, attention_mask=(source != timing.PAD).long(), **settings)
        return found[:, 1 : LENGTH + 1].tolist()  # without the begin and the end token

    return generate


def check_equal_work(cfg: timing.Settings, vocab_size: int, implementation: str) -> None:
    """With the same parameters both write the same headlines in the same number of decoder steps.

    `transformers` ranks without the probability of a forced end token, attnorm with it. Here it is nearly 1, so that
    both rank alike; the timed searches do the same work either way.
    """
    ours, peer = timing.equal_models(cfg, vocab_size, implementation)
    ours.output.bias.data[timing.EOS] = peer.final_logits_bias[0, timing.EOS] = 20.0
    steps = {"ours": 0, "peer": 0}

    def count(name: str) -> Callable:
        def hook(*_) -> None:
            steps[name] += 1

        return hook

    ours.layers[0].register_forward_hook(count("ours"))
    peer.model.decoder.layers[0].register_forward_hook(count("peer"))
    table, _ = timing.sequences(6, vocab_size)
    for beams in BEAMS:
        for source in batches(cfg, table, beams):
            mine, theirs = ours_generates(ours, beams)(source), peer_generates(peer, beams)(source)
            assert {len(headline) for headline in mine} == {LENGTH}
            assert mine == theirs, f"beam {beams}, {implementation}: {mine} but {theirs}"
            assert steps["ours"] == steps["peer"], steps
    assert steps["ours"] == len(BEAMS) * (LENGTH + 1), steps


def measure(args: Namespace) -> None:
    """Prints headlines a second of both, and whether ours are as many."""
    import torch

    rows, reached = [], {}
    for size in args.model:
        cfg = timing.configure(f"model={size}")
        table, _ = timing.sequences(args.articles, args.vocab_size)
        for implementation in args.implementations:
            check_equal_work(cfg, args.vocab_size, implementation)
        ours = timing.build_ours(cfg, args.vocab_size).to(args.device).eval()
        peers = {
            f"{timing.PEER}{name}": timing.build_peer(ours.shape, args.vocab_size, name).to(args.device).eval()
            for name in args.implementations
        }
        for beams in BEAMS:
            sources = [source.to(args.device) for source in batches(cfg, table, beams)]

            def contestant(generate: Callable, sources=sources) -> Callable[[int], int]:
                def run(number: int) -> int:
                    with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bfloat16"):
                        return sum(len(generate(source)) for source in sources)

                return run

            contestants = {"attnorm softmax": contestant(ours_generates(ours, beams))}
            contestants |= {name: contestant(peer_generates(peer, beams)) for name, peer in peers.items()}
            found = rates(contestants, args.rounds, args.device)
            ratios = timing.compare(found, timing.fastest_peer(found))
            reached[f"{size} beam {beams}"] = ratios["attnorm softmax"][0]
            search = "greedy" if beams == 1 else f"beam {beams}"
            for name, values in found.items():
                rows.append([size, name, search, f"{median(values):,.1f}", timing.ratio_text(ratios[name])])
    title = f"Generation: {args.articles} articles, headlines of {LENGTH} tokens, key-value cache"
    timing.print_table(title, ["model", "contestant", "search", "headlines/s", "to transformers"], rows)
    timing.verdict("generation", 1.0, reached)
