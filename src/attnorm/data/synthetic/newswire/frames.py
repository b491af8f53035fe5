"""What goes around a clause: the orders of a lead sentence, and each desk's openings and sources."""

from attnorm.data.synthetic.newswire.lexicon import KINDS
from attnorm.data.synthetic.newswire.notation import Template, compile_template

# The orders of a sentence, drawn uniformly (a line given twice is drawn twice as often). `core` is the event's clause,
# `detail` one of its details, `who` and `lead` are its desk's, `aside` is anyone's, `on` is a day.
# So that names stay apart, slots are numbered 7 in leads, 8 in sources, 9 in details and asides.
FRAMES = """
core , detail , who said on .
core , detail , who said on .
core , who said on , detail .
core , detail , according to who .
core , detail .
core , aside , who said on .
core , aside , who said .
core , aside .
core , who said on .
core on , aside .
on , core , detail , who said .
who said on that core , detail .
who said that core , aside .
lead , core , aside .
lead , core , detail .
lead , core , who said on .
lead , who said that core .
"""

# The orders of a sentence that also reports a second event, in difficulty "hard". `second` is that event's clause. The
# headline is about `core`, which the grammar of the sentence singles out: it is the main clause, or the first of two,
# or the one that the sentence calls more important.
FRAMES_OF_TWO = """
core , hours after second .
core on , as second .
core , while second .
core , who said , and second .
core , overshadowing reports that second .
core , days before second .
who said that core , and that second .
as second , core .
while second , core .
hours after second , core , who said .
reports that second were overshadowed when core .
"""

# Asides of any desk: other news, other people and places than the clause's own.
_ASIDES = """
a day after {group9} protested against {issue9} in {country9}
on a day when {company9} opened an office in {country9.capital}
hours after {calamity9} hit {country9}
in a week dominated by news of {calamity9} in {country9.town}
while {org9} discussed {issue9} in {country9.capital}
as {office9} {person9} of {country9} was meeting {group9}
as {group9} demonstrated outside {place9} in {country9.town}
in the presence of {office9} {person9} of {country9}
a fact first reported by the {job9} {person9} on a website
watched by {group9} from {country9} who were visiting {place9}
at a time when {country9} and {company9} are quarreling about {goods9}
despite a warning by {org9} of {calamity9}
despite the criticism of {person9} , a {country9.adj} expert on {issue9}
although {group9} had asked {org9} for a delay
in an affair that reminded many of {person9} , the {country9.adj} {job9}
which the {country9.adj} {job9} {person9} called a scandal
news that came as a surprise to {group9} in {country9.capital}
months after {person9} of {company9} had warned of it
in contrast to {country9} , where {issue9} was the main worry
"""

# desk -> openings (adverbial phrases, sometimes with a country of their own) and sources (who said it)
_DESKS = {
    "business": (
        """
in the latest sign of a shake-up in the industry
after months of speculation in the press
under strong pressure from shareholders in {country7}
days after its partner {company7} issued a profit warning
in a move that surprised the market
only a week after {person7} took over as deputy chairman
""",
        """
analysts
the business daily of {country8.capital}
a spokeswoman
{person8} , an analyst at {company8} ,
sources close to the matter
{company8} , a consulting firm ,
""",
    ),
    "markets": (
        """
at the end of a nervous week in {country7.capital}
in spite of gloomy forecasts by {company7}
as trading resumed after a long holiday
following the release of figures from {country7}
ahead of a speech by governor {person7}
for the first time this year
""",
        """
dealers
dealers in {country8.capital}
{person8} , a strategist at {company8} ,
an official report
bankers
""",
    ),
    "politics": (
        """
after a marathon session
amid growing tension between the parties
in a blow to party leader {person7}
just {few7} weeks before the party congress
in a surprise turn of events
like its neighbor {country7} a year ago
""",
        """
state television
a government spokesman
a party official who asked not to be named
political analyst {person8}
the state news agency
a newspaper in {country8}
""",
    ),
    "diplomacy": (
        """
after weeks of quiet diplomacy in {country7.capital}
in the face of criticism from {country7}
in what diplomats called a breakthrough
defying a warning by foreign secretary {person7}
at the request of {country7}
in a new twist to an old quarrel
""",
        """
diplomats
a foreign ministry spokesman
envoy {person8}
diplomats in {country8.capital}
the {country8.adj} embassy
a senior official traveling with {person8}
""",
    ),
    "conflict": (
        """
in a fresh wave of violence
hours before {person7} was due to address the nation
despite the presence of soldiers from {country7}
shortly before dawn
as fears of a wider war grew in {country7}
barely a month after a truce came into force
""",
        """
military sources
witnesses
colonel {person8}
the {country8.adj} news agency
residents reached by telephone
an army spokesman in {country8.town}
""",
    ),
    "crime": (
        """
after an investigation lasting more than a year
in a case that shocked the nation
acting on information from {country7}
to the relief of many citizens
in spite of doubts voiced by lawyer {person7}
as part of a campaign against organized crime
""",
        """
police
a police spokesman
chief inspector {person8}
court officials
justice officials in {country8.capital}
the local radio
""",
    ),
    "disaster": (
        """
in the early hours of the morning
less than a week after a similar tragedy in {country7}
during the busiest travel season of the year
in a region still recovering from war
while {person7} was visiting the area
to the horror of onlookers
""",
        """
rescue workers
officials
the {country8.adj} news agency
governor {person8}
civil defense officials
a red cross worker from {country8}
""",
    ),
    "science": (
        """
after years of patient work
in a finding that may change the textbooks
with help from scientists in {country7}
in spite of doubts raised by professor {person7}
for the second time in {few7} months
to the surprise of most experts
""",
        """
scientists
the health ministry
professor {person8} of {country8.town} university
a medical journal
researchers in {country8}
""",
    ),
    "sport": (
        """
on a cold and windy evening
in the biggest surprise of the season
watched by the royal family of {country7}
after a week of rumors about {person7}
to the delight of the home crowd
just days before the trip to {country7}
""",
        """
organizers
the sports daily of {country8.capital}
team officials
former champion {person8}
the federation
""",
    ),
    "culture": (
        """
after a year of rumors
in a ceremony broadcast live in {country7}
to the dismay of many admirers
ending weeks of gossip about {person7}
on the opening night of the spring festival
as critics in {country7.capital} had predicted
""",
        """
a family friend
the culture ministry
critic {person8}
a glossy magazine
a gallery in {country8.town}
""",
    ),
}

ASIDES: list[Template] = [compile_template(line, KINDS) for line in _ASIDES.strip().splitlines()]

_DAYS = ("on {day}", "on {day}", "{day}", "late {day}", "early on {day}")
DAYS = [compile_template(text, KINDS) for text in _DAYS]


class Desk:
    """A news desk's ways to begin and to attribute: `leads` and `sources`, lists of templates."""

    def __init__(self, leads: str, sources: str) -> None:
        self.leads: list[Template] = [compile_template(line, KINDS) for line in leads.strip().splitlines()]
        self.sources: list[Template] = [compile_template(line, KINDS) for line in sources.strip().splitlines()]


DESKS = {name: Desk(leads, sources) for name, (leads, sources) in _DESKS.items()}
