"""The wording of stories: words for which reporters and copy editors have more than one choice.

In the corpus of difficulty "hard", each occurrence of such a word is replaced by one of its choices, drawn uniformly
and independently of everything else. In an article, this means more words to learn for the same event. In a headline,
no model can predict which choice was drawn, as with real headlines.
"""

from collections.abc import Callable, Mapping

# "word: other choices"; the word itself is one of the choices. In articles, verbs are past tense and participle alike.
_ARTICLE = """
criticised: condemned | denounced; praised: applauded | commended; ridiculed: mocked; warned: cautioned;
misled: deceived | fooled; supported: backed | endorsed; ignored: disregarded | overlooked; insulted: offended;
surprised: astonished | startled; angered: enraged | infuriated; reassured: comforted; arrested: detained | apprehended;
suspended: barred; released: freed | liberated; honored: decorated;
jailed: imprisoned | incarcerated; expelled: ejected | banished; interrogated: cross-examined; pardoned: absolved;
punished: disciplined | penalised; wrecked: destroyed | demolished; damaged: harmed; blocked: obstructed;
bought: purchased | acquired; raided: stormed | searched; guarded: protected; rebuilt: reconstructed | restored;
banned: prohibited; exported: shipped; promoted: advertised; hoarded: stockpiled; donated: contributed;
inspected: examined | scrutinised; rejected: spurned | rebuffed; refused: declined; promised: pledged;
demanded: requested; captured: seized; attacked: assaulted; kidnapped: abducted | snatched;
defeated: conquered | bested; cancelled: scrapped; raised: increased | lifted; lowered: reduced | trimmed;
rose: climbed; fell: dropped | declined; dispute: quarrel | disagreement
"""
_HEADLINE = """
slams: blasts | attacks; hails: lauds; defends: stands by; mocks: derides; warns: cautions; misleads:
deceives; asks: consults; backs: supports; snubs: ignores; insults: offends; stuns: shocks; irks: angers; calms:
soothes; sues: takes to court; nabs: arrests; sacks: fires | dumps; hires: appoints; frees: releases; honors: salutes;
jails: imprisons | locks up; ousts: expels; grills: quizzes; invites: welcomes; pardons: forgives; deports: throws
out; punishes: disciplines; wrecks: destroys; hits: damages; blocks: cuts off; buys: acquires; shuts: closes; tours:
visits; raids: storms; quits: abandons; orders: requests; ships: exports; pulls: recalls | withdraws;
touts: promotes; hoards: stockpiles; auctions: sells off; donates: gives away; checks: inspects; bans: outlaws;
rejects: spurns; seeks: wants; prompts: triggers; kills: claims; starts: begins; seize: capture; pm: premier; boss:
chief; giant: group; firm: company; row: dispute | spat; plea: appeal; probe: inquiry; pact: treaty;
ban: embargo; fears: worries; quake: tremor; revolt: uprising; troops: soldiers; workers: staff; dead: killed; staff:
workers; victims: casualties; over: on | about; after: following; maker: producer; case: affair; leaders: chiefs
"""


def _read(text: str) -> dict[str, tuple[str, ...]]:
    choices = {}
    for entry in text.replace("\n", " ").split(";"):
        word, _, others = entry.strip().partition(":")
        choices[word] = (word, *(other.strip() for other in others.split("|")))
    return choices


ARTICLE_CHOICES, HEADLINE_CHOICES = _read(_ARTICLE), _read(_HEADLINE)


def reword(random: Callable[[], float], text: str, choices: Mapping[str, tuple[str, ...]]) -> str:
    """Replaces each word of the text that has choices by one of them, drawn with `random`."""
    words = (choices.get(word, (word,)) for word in text.split())
    return " ".join(options[int(random() * len(options))] for options in words)
