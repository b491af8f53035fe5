"""The built-in corpus for visual question answering: generated scenes, three simulated detectors, questions on them.

    from attnorm.data.synthetic.scenes import detect, questions, scene
    drawn = scene("train", 0)                    # things of a shape, colour, size and place
    views = detect("train", 0)                   # what each of DETECTORS gives for it: 36 boxes
    asked = questions("train", 0)                # texts with their answers

Each thing is seen by at least two of the detectors, and none of them can tell both its shape and its colour: see
`detectors`. Everything is a pure function of (split, index, seed).
"""

from attnorm.data.synthetic.scenes.detectors import DETECTORS, Detections, Detector, detect
from attnorm.data.synthetic.scenes.generate import Scene, Thing, scene
from attnorm.data.synthetic.scenes.questions import Question, questions

__all__ = ["DETECTORS", "Detections", "Detector", "Question", "Scene", "Thing", "detect", "questions", "scene"]
