"""How hard the generated stories are: the difficulties between which `data.difficulty` chooses."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Difficulty:
    """What distinguishes the stories of one difficulty from those of another. Shares are between 0 and 1.

    second_events: share of the articles that report a second event. The headline is about the main clause only, so the
                   model has to tell which of two complete events the sentence is about.
    rare_names:    share of the persons and companies with a rare name, which has to be copied piece by piece.
    reworded:      whether words are drawn from several choices, in articles and in headlines; see `wording`. A headline
                   that names the people of a country may instead name the country.
    """

    second_events: float = 0.0
    rare_names: float = 0.0
    reworded: bool = False


DIFFICULTIES = {
    "easy": Difficulty(),
    "hard": Difficulty(second_events=0.8, rare_names=0.9, reworded=True),
}
