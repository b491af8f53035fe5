"""The generated scenes: what is promised of things, detectors and questions holds, and nothing of them changes."""

import hashlib
import inspect
import itertools
import json
from collections import Counter, defaultdict

import numpy as np
import pytest
from builders import build_source

from attnorm.data.sources import scenes as scenes_source
from attnorm.data.synthetic.scenes import DETECTORS, Thing, detect, questions, scene
from attnorm.data.synthetic.scenes import detectors as boxes
from attnorm.data.synthetic.scenes.generate import COLOURS, SHAPES, SIDES, VALUES
from attnorm.data.synthetic.scenes.questions import PER_SCENE, answer

DRAWN = [scene("train", index) for index in range(300)]
ASKED = [questions("train", index) for index in range(1000)]
SEEN = [detect("train", index) for index in range(25)]


def overlap(a, b):
    """Of two boxes, the shared area over that of both."""
    width, height = (min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in range(2))
    shared = max(0.0, width) * max(0.0, height)
    return shared / (sum((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)) - shared)


# scenes and detectors


def test_things_lie_inside_and_apart():
    for things in DRAWN:
        assert 4 <= len(things) <= 8
        for number, thing in enumerate(things):
            assert min(thing.box) >= 0 and max(thing.box) <= 1
            assert abs(thing.side / SIDES[thing.size] - 1) <= 0.08 + 1e-9
            assert all(overlap(thing.box, other.box) == 0 for other in things[:number])
            assert not thing.at_border or thing.size == "medium"
            edge = min(thing.box[0], thing.box[1], 1 - thing.box[2], 1 - thing.box[3])
            assert edge < 0.0126 if thing.at_border else edge > 0.049  # nothing in between that could go either way
    medium = [thing for things in DRAWN for thing in things if thing.size == "medium"]
    assert 0.4 < np.mean([thing.at_border for thing in medium]) < 0.75


def test_every_look_is_drawn_about_equally_often():
    things = [thing for things in DRAWN for thing in things]
    for name, values in VALUES.items():
        shares = Counter(getattr(thing, name) for thing in things)
        assert set(shares) == set(values)
        assert max(shares.values()) < 1.5 * min(shares.values())
    assert all(len({thing.shape for thing in things}) <= 4 for things in DRAWN)


def test_two_detectors_see_each_thing_and_none_can_name_it():
    for thing in (thing for things in DRAWN for thing in things):
        seeing = [detector for detector in DETECTORS if not detector.misses(thing)]
        assert len(seeing) >= 2
        for kind, values in (("shapes", SHAPES), ("colours", COLOURS)):
            value = thing.shape if kind == "shapes" else thing.colour
            sets = [next(set(group) for group in getattr(detector, kind) if value in group) for detector in seeing]
            assert set.intersection(*sets) == {value}
            assert all(sorted(sum(getattr(it, kind), ())) == sorted(values) for it in DETECTORS)
    assert not any(len(it.shapes) == len(SHAPES) and len(it.colours) == len(COLOURS) for it in DETECTORS)


def test_each_detector_misses_what_it_says():
    for size, position, missing in (("small", 0.5, 0), ("medium", 0.08, 1), ("large", 0.5, 2)):
        thing = Thing("ring", "red", size, position, 0.5, SIDES[size])
        assert [detector.misses(thing) for detector in DETECTORS] == [i == missing for i in range(3)]
    assert not any(it.misses(Thing("ring", "red", "medium", 0.5, 0.5, 0.15)) for it in DETECTORS)


def test_what_is_taken_for_one_another_has_the_same_code():
    for detector in DETECTORS:
        entries = 1 + sum(map(len, detector.kinds))
        assert detector.projection(0).shape == (entries, detector.width)
        for shape in SHAPES:
            for other in SHAPES:
                same = (detector.code(shape, "red", "small") == detector.code(other, "red", "small")).all()
                assert same == any({shape, other} <= set(kind) for kind in detector.shapes)
        code = detector.code("star", "pink", "large")
        assert code.shape == (entries,) and code.sum() == 4 and code[0] == 1
        at = [1, 1 + len(detector.shapes), 1 + len(detector.shapes) + len(detector.colours), entries]
        assert [code[a:b].sum() for a, b in itertools.pairwise(at)] == [1, 1, 1]


def test_features_are_projected_codes_with_noise():
    """The code read back from a sure box is that of the thing under it, with a high confidence; clutter's is low."""
    right, confidences = [], {True: [], False: []}
    for index, views in enumerate(SEEN):
        things = scene("train", index)
        for detector, outcome in zip(DETECTORS, views, strict=True):
            codes = outcome.features @ np.linalg.pinv(detector.projection(0))
            for sure in (True, False):
                confidences[sure] += codes[outcome.sure == sure, 0].tolist()
            for code, place in zip(codes[outcome.sure], outcome.places[outcome.sure], strict=True):
                thing = next((it for it in things if overlap(it.box, place) > 0.4), None)
                if thing is not None:
                    shapes = code[1 : 1 + len(detector.shapes)]
                    right.append(thing.shape in detector.shapes[int(shapes.argmax())])
    assert len(right) > 200 and np.mean(right) > 0.97
    assert 0.75 < np.mean(confidences[True]) < 0.95 and 0.1 < np.mean(confidences[False]) < 0.3


def test_a_view_is_36_boxes_things_found_and_missed_among_them():
    twice = false = missed = found_at_all = 0
    for index, views in enumerate(SEEN):
        things = scene("train", index)
        for detector, found in zip(DETECTORS, views, strict=True):
            assert found.features.shape == (36, detector.width) and found.places.shape == (36, 4)
            assert found.sure.shape == (36,) and np.abs(found.features).max() < 100  # half precision can store it
            assert (found.places >= 0).all() and (found.places <= 1).all()
            assert (found.places[:, :2] < found.places[:, 2:]).all()
            assert not found.sure[: found.sure.sum()].all() or found.sure.sum() < 3  # in shuffled order
            hits = 0
            for thing in things:
                over = [overlap(thing.box, place) > 0.4 for place in found.places]
                sure = int(np.sum(np.array(over) & found.sure))
                assert sure == 0 if detector.misses(thing) else 1 <= sure <= 2
                assert any(over)  # of what is missed there is a box of clutter
                twice, missed, found_at_all = twice + (sure == 2), missed + (sure == 0), found_at_all + (sure > 0)
                hits += sure
            wrong = found.sure.sum() - hits
            assert 0 <= wrong <= 2
            false += wrong
    assert 0.15 < twice / found_at_all < 0.35 and 0.6 * 75 < false < 1.4 * 75 and missed > 50


def test_no_two_detectors_find_the_same_thing_that_is_not_there():
    for index, views in enumerate(SEEN):
        things = scene("train", index)
        sure = [place for found in views for place in found.places[found.sure]]
        false = [place for place in sure if all(overlap(thing.box, place) < 0.3 for thing in things)]
        assert all(overlap(a, b) == 0 for number, a in enumerate(false) for b in false[:number])


# questions


def test_every_answer_follows_from_the_scene():
    for index, asked in enumerate(ASKED[:300]):
        things = scene("train", index)
        assert len(asked) == PER_SCENE and len({it.program for it in asked}) == PER_SCENE
        for it in asked:
            assert it.answer == answer(it.program, things)
            assert it.kind == {"count": "number", "query": "other"}.get(it.type, "yes/no")


THINGS = (Thing("ring", "red", "large", 0.2, 0.3, 0.2), Thing("ring", "blue", "small", 0.6, 0.2, 0.1))
THINGS += (Thing("star", "red", "medium", 0.9, 0.7, 0.15),)
RING, RED, STAR, BLUE = (("shape", "ring"),), (("colour", "red"),), (("shape", "star"),), (("colour", "blue"),)
BIG = (("size", "large"), ("shape", "ring"))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (("exist", RING), "yes"),
        (("exist", RED + RING), "yes"),
        (("exist", BLUE + STAR), "no"),
        (("count", RING), "2"),
        (("count", BLUE + STAR), "0"),
        (("query", "colour", STAR), "red"),
        (("query", "size", BLUE), "small"),
        (("query", "shape", BLUE), "ring"),
        (("more", RING, STAR), "yes"),
        (("more", STAR, RING), "no"),
        (("more", RING, RED), "no"),
        (("relation", "left of", BIG, BLUE), "yes"),
        (("relation", "right of", BIG, BLUE), "no"),
        (("relation", "above", BLUE, BIG), "yes"),  # y grows downwards
        (("relation", "below", STAR, BLUE), "yes"),
        (("relation", "above", STAR, BLUE), "no"),
        (("larger", STAR, BLUE), "yes"),
        (("larger", BLUE, STAR), "no"),
    ],
)
def test_programs_by_hand(program, expected):
    assert answer(program, THINGS) == expected


def test_what_is_not_one_thing_has_no_attribute():
    for program in (("query", "size", RING), ("larger", RING, STAR), ("query", "size", BLUE + STAR)):
        with pytest.raises(ValueError, match=r"(2|0) things like"):
            answer(program, THINGS)


def test_answers_are_balanced():
    counts = defaultdict(Counter)
    for item in (item for asked in ASKED for item in asked):
        counts[item.type][item.answer] += 1
        counts[item.program[0]][item.answer] += item.program[0] != item.type
    for name in ("exist", "compare", "more", "relation", "larger"):
        total = counts[name].total()
        assert set(counts[name]) == {"yes", "no"}
        assert abs(counts[name]["yes"] / total - 0.5) < 2.5 * 0.5 / total**0.5 + 0.01, name
    for name in ("count", "query"):
        assert counts[name].most_common(1)[0][1] < 0.4 * counts[name].total()
    assert set(counts["query"]) == {*SHAPES, *COLOURS, *SIDES}
    assert all(0.2 < counts[name].total() / 4000 < 0.3 for name in ("exist", "count", "query", "compare"))


def test_words_tell_little_of_a_yes_or_no():
    """No word that is in many yes/no questions makes one of the answers much more frequent."""
    counts = defaultdict(Counter)
    for it in (it for asked in ASKED for it in asked if it.kind == "yes/no"):
        for word in set(it.text.rstrip("?").split()):
            counts[word][it.answer] += 1
    frequent = {word: actual for word, actual in counts.items() if actual.total() >= 60}
    assert len(frequent) > 20
    for word, actual in frequent.items():
        assert abs(actual["yes"] / actual.total() - 0.5) < 2 / actual.total() ** 0.5 + 0.02, (word, actual)


def test_the_words_say_what_the_program_asks():
    synonyms = {"little": "small", "tiny": "small", "medium-sized": "medium", "big": "large", "color": "colour"}
    for it in (it for asked in ASKED[:300] for it in asked):
        words = [synonyms.get(word.rstrip("?."), word.rstrip("?.")) for word in it.text.split()]
        filters = [part for part in it.program[1:] if isinstance(part, tuple)]
        said = Counter(word for word in words if word in {*COLOURS, *SIDES})
        said += Counter(shape for word in words for shape in SHAPES if word in (shape, f"{shape}s", f"{shape}es"))
        if it.program[0] == "query":
            assert it.program[1] in words or (it.program[1] == "size" and "big" in it.text.split())
            said -= Counter(["large"]) if "how big" in it.text else Counter()
        assert said == Counter(value for found in filters for _, value in found), it
        assert " an " not in f" {it.text} " or " an orange" in it.text
        assert " a orange" not in it.text and "crosss" not in it.text and "{" not in it.text


# the source


def test_the_source_gives_questions_and_views_that_belong_together(tmp_path):
    source = build_source("scenes", train_size=10, valid_size=3, corpus_seed=5)
    assert source.schema.name == "visual" and source.check(["train", "validation", "test"]) == []
    rows = list(source.rows("train"))
    assert len(rows) == 10 and [row[0] for row in rows] == [f"train-{i}" for i in range(10)]
    assert [row[1] for row in rows] == [f"train-{i // 4}" for i in range(10)]
    asked = [it for index in range(3) for it in questions("train", index, 5)][:10]
    assert [row[2:] for row in rows] == [(it.text, json.dumps([it.answer]), it.kind) for it in asked]
    views = source.views("train", tmp_path)
    assert views.names == ["outlines", "colours", "details"] and views.widths == [48, 64, 40]
    assert views.boxes == [36] * 3
    views.check({row[1] for row in rows})
    for (features, present, geometry), result in zip(views.read(["train-2"]), detect("train", 2, 5), strict=True):
        assert present.all()
        np.testing.assert_allclose(features[0], result.features, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(geometry[0], result.places, atol=1e-6)
    with pytest.raises(ValueError, match="no features of 1 image: train-3"):
        views.read(["train-3"])
    assert len(list(source.rows("validation"))) == 3
    assert source.views("validation", tmp_path).rows == {"validation-0": 0}


def test_views_are_made_once(tmp_path, monkeypatch):
    calls = []
    made = detect
    monkeypatch.setattr(scenes_source, "detect", lambda *args: calls.append(args) or made(*args))
    source = build_source("scenes", train_size=48)
    source.views("train", tmp_path)
    first = len(calls)
    source.views("train", tmp_path)
    assert first == 12 + 10 and len(calls) == first + 10  # the first ten decide whether they are the same
    folders = {entry.name for entry in tmp_path.iterdir() if entry.is_dir()}
    for other in ({"corpus_seed": 1}, {"train_size": 60}):
        build_source("scenes", **{"train_size": 48, **other}).views("train", tmp_path)
    assert len({entry.name for entry in tmp_path.iterdir() if entry.is_dir()}) == len(folders) + 2
    monkeypatch.setattr(boxes, "NOISE", 0.4)
    source.views("train", tmp_path)
    assert len({entry.name for entry in tmp_path.iterdir() if entry.is_dir()}) == len(folders) + 3


def test_the_fingerprint_follows_parameters_and_generator(monkeypatch):
    def fingerprint(split="train", **options):
        return build_source("scenes", **options).fingerprint(split)

    plain = fingerprint(train_size=40)
    assert plain == fingerprint(train_size=40, valid_size=9)
    others = [fingerprint(train_size=41), fingerprint(train_size=40, corpus_seed=1), fingerprint("test", test_size=40)]
    monkeypatch.setattr(scenes_source, "questions", lambda *args: [])
    assert len({plain, *others, fingerprint(train_size=40)}) == 5


def test_splits_and_seeds_differ():
    drawn = [scene("train", 0), scene("validation", 0), scene("test", 0), scene("train", 0, 1), scene("train", 1)]
    assert len(set(drawn)) == 5
    seen = [detect("train", 0), detect("train", 0, 1)]
    assert not np.allclose(seen[0][0].features, seen[1][0].features)
    assert not np.allclose(DETECTORS[0].projection(0), DETECTORS[0].projection(1))
    np.testing.assert_array_equal(detect("train", 0)[2].features, seen[0][2].features)


def test_the_corpus_is_frozen():
    """Whoever changes the generator makes every published number of this corpus another one's."""
    asked = [[it.text, it.answer, it.kind] for asked in ASKED[:200] for it in asked]
    assert hashlib.blake2b(json.dumps(asked).encode(), digest_size=8).hexdigest() == "333c94075f3b496d"
    places = [[round(value, 6) for value in thing[3:]] for things in DRAWN[:50] for thing in things]
    assert hashlib.blake2b(json.dumps(places).encode(), digest_size=8).hexdigest() == "fd35a4d468b1b26a"
    corners = [round(float(found.features[row, column]), 3) for found in SEEN[0] for row, column in ((0, 0), (35, -1))]
    np.testing.assert_allclose(corners, FEATURES, atol=2e-3)
    assert inspect.signature(type(build_source("scenes"))).parameters["train_size"].default == 80_000


FEATURES = [0.154, -0.35, -0.947, 0.579, -0.18, 0.19]
