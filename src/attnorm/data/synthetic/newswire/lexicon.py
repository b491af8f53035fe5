"""The words that fill the slots: a kind (country, person, ...) is a list of entries, an entry a tuple of forms.

The first two forms of an entry are how it reads in an article and how it reads in a headline. All names are invented
and begin with a consonant, so that "a {country.adj} minister" is always right.
"""

from typing import NamedTuple

from attnorm.data.synthetic.newswire import pools


class Kind(NamedTuple):
    """One slot kind: its entries, and the names of the forms that follow "article" and "headline" in each entry."""

    entries: list[tuple[str, ...]]
    forms: tuple[str, ...] = ()


def options(text: str) -> list[tuple[str, ...]]:
    """Read "article form > headline form | ..."; an option without ">" reads the same on both sides."""
    entries: list[tuple[str, ...]] = []
    for option in text.split("|"):
        article, _, headline = (part.strip() for part in option.partition(">"))
        entries.append((" ".join(article.split()), " ".join((headline or article).split())))
    return entries


# country, demonym, capital, another town
_COUNTRIES = """
tarvania tarvanian kelmar dovrin; belmora belmoran santiva porvela; corvinia corvinian halvek tresna;
drovia drovian mirgrad pelsk; feldland feldish hammark sorby; galdova galdovan brestin yarmik;
jorvania jorvanian lindholm raskby; kazoria kazori temirsk balgash; kumaria kumari chandpur velagar;
lotharia lotharian grauburg steinau; luvonia luvonian tarlin voskov; maduva maduvan kisanga lubeto;
marenia marenese calvino torresa; mokanda mokandan bujara nakole; nambola nambolan lukari sefuwa;
nordmark nordic skarvik hestad; palanda palandan manoro cebika; pelonia pelonian korithos larina;
quintara quintaran casquera lomasol; ravonia ravonian zabrik pelin; samoria samorian lokomo paviti;
selvania selvanese bosquita riolanta; sundara sundari javapur malendra; turgistan turgi karshad dushkara;
valdoria valdorian monteluce fiorenda; wadira wadiri rasimah jubaya; yamara yamari sanabad hodera;
zambola zambolan kitwara ndolani; bahrisa bahrisi manamet doharra; bulgovia bulgovian sofrin plevdin;
cambora camboran siemra tonlepa; gharzan gharzani kabrul heradi; kirvan kirvani bishtar naryna;
mirania mirani tehvaz sfaran; nepura nepurese katmara pokhan; rukanda rukandan kigalo butaro;
sarkovia sarkovian belgrav nishka; somira somiri mogada kismaro; tunara tunaran sfaxar bizera;
lanvo lanvonese hanoma dalang
"""

_FIRST_NAMES = """
nicolas maria viktor helena daniel sofia marek laura david carmen joseph nadia peter rosa samuel lena thomas julia
robert tanya martin paula henrik diana karim leila pavel greta simon vera hassan monica lucas mira felix teresa
"""

_LAST_NAMES = """
arvedo balkoni barzan belford berisko bodrik brandel brenko burmay calder camarro castrel chenko corrigo dahlen
dalvik damaro delgray demirak dorvin drago dunmore farkos fenwick ferrano fontel galmar garrick gelder gomari gralik
gudrun halloway harmon hartik hessel holtz hurley jandro janssel jarvik kadiri kalvo kamara karsten kedra kessel
kimball kobari korda kovarik lanzo larkin lavelle lindor lombari lugano madsen makari malvern mardo marlow mendak
merrin mirza molnik morano nakari nazari nelvik nordin novarro pallas pardek pavlin pelham petrak pinelli porter
quiroza radek rambert ramizi renard rivas rolland romani rosvik ruskin sabari salvo santori sarkis savall selmer
shandar sorel stanek stolz strand sukari talbot tamarin tarkov tellman thorsen torvald turani valenko vargo velasko
verhoef vidal vogler voss walden warrick wendel wexler yamato yardley zabala zamora zelnik zoran
"""

_COMPANIES = """
marlex dynatek solvane brantel nortex kervon lumira petrosa vantix corvex helmar trionix galvana medora santrel
polarix zentra quadrix dermont falkner hartwell kestrel langmar maxton norvale pharmex redwell silvano starling
tecora tramond unilec valmeta verdana westar wilmot zephyra bancora boreal candela delphos fortika glenmore
kronberg lorimar mirabel nexaro parvus rexon sentrix tolmar
"""

_CLUBS = """
brackley carsdale dunford fairholm garnock hexley kirkdale langport marsden northam pendle redcliff stanmore thornby
wexham bramley colmere dalston fernhill glenburn halford kelby lowick milburn norwell ravensby selkirk tarnside welford
"""

_SMALL_NUMBERS = "two | three | four | five | six | seven | eight | nine | ten | eleven | twelve | ## | ## | ### "

_MONEY = """
## million dollars > ## mln dlrs | ### million dollars > ### mln dlrs | #.# billion dollars > #.# bln dlrs |
## billion dollars > ## bln dlrs | nearly ### million dollars > ### mln dlrs
"""


def _people() -> list[tuple[str, ...]]:
    return [(f"{first} {last}", last) for first in _FIRST_NAMES.split() for last in _LAST_NAMES.split()]


def _companies() -> list[tuple[str, ...]]:
    endings = ("group", "corp.", "holdings", "international", "industries", "inc.")
    return [(f"{name} {ending}", name) for name in _COMPANIES.split() for ending in endings]


def _clubs() -> list[tuple[str, ...]]:
    return [(f"{name} {ending}", name) for name in _CLUBS.split() for ending in ("united", "rovers", "athletic")]


def _countries() -> list[tuple[str, ...]]:
    entries: list[tuple[str, ...]] = []
    for line in _COUNTRIES.replace("\n", " ").split(";"):
        name, adjective, capital, town = line.split()
        entries.append((name, name, adjective, capital, town))
    return entries


KINDS: dict[str, Kind] = {
    "country": Kind(_countries(), ("adj", "capital", "town")),
    "person": Kind(_people()),
    "company": Kind(_companies()),
    "club": Kind(_clubs()),
    "sector": Kind(options(pools.SECTORS)),
    "office": Kind(options(pools.OFFICES)),
    "org": Kind(options(pools.ORGANISATIONS)),
    "group": Kind(options(pools.GROUPS)),
    "issue": Kind(options(pools.ISSUES)),
    "goods": Kind(options(pools.GOODS)),
    "place": Kind(options(pools.PLACES)),
    "job": Kind(options(pools.JOBS)),
    "calamity": Kind(options(pools.CALAMITIES)),
    "vehicle": Kind(options(pools.VEHICLES)),
    "wrong": Kind(options(pools.WRONGS)),
    "stance": Kind(options(pools.STANCES)),
    "deed": Kind(options(pools.DEEDS)),
    "take": Kind(options(pools.TAKINGS)),
    "deal": Kind(options(pools.DEALINGS)),
    "treasure": Kind(options(pools.TREASURES)),
    "few": Kind(options(_SMALL_NUMBERS)),
    "money": Kind(options(_MONEY)),
    "day": Kind(options("monday | tuesday | wednesday | thursday | friday | saturday | sunday")),
    "month": Kind(options("january | february | march | april | june | july | september | october | november")),
}
