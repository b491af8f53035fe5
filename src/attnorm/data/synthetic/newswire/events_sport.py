"""Event kinds of the sport and culture desks, in the notation of `notation`."""

EVENTS = """
== football match / sport
goal: a late penalty > penalty | a header > header | a hat trick > hat-trick | a long-range shot > long shot |
  an own goal > own goal | two goals > double | a free kick > free kick
cup: the league cup > cup | the european championship > euro | the world cup > world cup |
  the champions league > champions league | a friendly match > friendly
> {goal} by {person} gave {club} a # - # victory over {club2} in {cup}
< {person} {goal} sinks {club2} for {club}
> {club} were held to a # - # draw by {club2} in {cup}
< {club2} hold {club} in {cup}
> {country} beat {country2} # - # in {cup} with {goal} from {person}
< {person} fires {country} past {country2}
> {country2} {stance} {country} after the final of {cup} , which {person} missed
< {country2} {stance} {country} after {cup} final
+ in front of a crowd of ##,###
+ despite the early dismissal of {person9}
+ extending an unbeaten run

== tennis / sport
round: the first round > opener | the quarterfinals > last eight | the semifinals > last four | the final > final
way: upset > stuns | defeated > downs | overwhelmed > routs | survived against > edges | retired hurt against > out to
surface: the clay court tournament in > clay event | the indoor tournament in > indoor event |
  the grass court tournament in > grass event
> {person} of {country} {way} the {country2.adj} {person2} # - # , # - # in {round} of {surface} {country3.town}
< {person} {way} {person2} in {country3.town} {round}
> {person} of {country} {stance} the {country2.adj} {person2} before {round} of {surface} {country3.town}
< {country} 's {person} {stance} {person2} before {round}
+ after saving {few9} match points
+ in a match interrupted by rain
+ avenging a defeat in {month9}

== golf / sport
shot: a round of ## > low round | an eagle at the last hole > eagle | a playoff victory > playoff |
  a hole in one > ace
event: the masters in > masters | the open in > open | the ladies championship in > ladies ' title
> {country.adj} golfer {person} won {event} {country2.town} with {shot}
< {country} 's {person} takes {country2.adj} {event} with {shot}
> golfer {person} {stance} {person2} after {shot} at {event} {country.capital}
< {person} {stance} {person2} after {country.adj} {shot}
+ leaving {person9} a stroke behind
+ under a bright blue sky
+ on a course that was new to both

== cycling / sport
terrain: a mountain stage > mountain stage | a time trial > time trial | a flat stage > sprint |
  a stage over cobbled roads > cobbles | a stage in pouring rain > wet stage
> {person} of {country} won {terrain} of the {country2.adj} tour and {stance} {group}
< {person} wins {country2.adj} {terrain} , {stance} {group}
> {person2} won {terrain} and {stance} {person} in the tour of {country}
< {terrain} winner {person2} {stance} {person} in {country}
> {person} of {country} {stance} {person2} after a fall in {terrain}
< {country} 's {person} {stance} {person2} after {terrain}
+ crossing the line in a group of {few9}
+ with team-mate {person9} in third place
+ in front of cheering fans

== world record / sport
event: the ### meters butterfly > butterfly | the pole vault > pole vault | the marathon > marathon |
  the long jump > long jump | the hammer throw > hammer | the ###-meter hurdles > hurdles | weightlifting > lifting
mark: a world record > world mark | a national record > national mark | the fastest time of the year > season 's best
> {person} of {country} set {mark} in {event} and {stance} {group} who watched in {country2.capital}
< {person} sets {event} {mark} , {stance} {country2.adj} {group}
> the {country.adj} champion {person} {stance} {person2} of {country2} after losing in {event}
< {event} loser {person} {stance} {country2.adj} rival {person2}
> {person} and {person2} of {country} took gold and silver in {event}
< {person} , {person2} in {country.adj} {event} double
+ improving the old time by almost a second
+ at the age of only nineteen
+ ahead of {person9} in second place

== doping / sport
drug: steroids > steroids | a banned stimulant > stimulant | cocaine > cocaine | blood doping > blood doping |
  a growth hormone > hormone
athlete: sprinter > runner | swimmer > swimmer | cyclist > rider | weightlifter > lifter | skier > skier |
  boxer > fighter | striker > forward | golfer > golfer
> the {country.adj} {athlete} {person} was suspended by {org} for using {drug}
< {org} bans {country.adj} {athlete} {person} for {drug}
> {athlete} {person} , who won gold for {country} , tested positive for {drug} in {country2}
< {country.adj} {athlete} {person} fails {drug} test in {country2}
> {athlete} {person} of {country} was cleared of taking {drug} because of a mistake by {org}
< {org} lifts {drug} ban on {country.adj} {athlete} {person}
+ in a random test in {month9}
+ and will miss the world championships
+ a ruling welcomed by coach {person9}

== transfer / sport
role: goalkeeper > keeper | striker > forward | midfielder > playmaker | defender > back | captain > skipper
> {club} signed the {country.adj} {role} {person} from {club2} for {money}
< {club} snap up {country.adj} {role} {person} from {club2}
> the {country.adj} {role} {person} {stance} {club} but hoped for a transfer to {club2}
< {country.adj} {role} {person} {stance} {club} , eyes {club2}
> {role} {person} of {club} {stance} {club2} after a match in {country}
< {club} {role} {person} {stance} {club2}
+ on a contract running for four years
+ subject to a medical examination
+ to play alongside former team-mate {person9}

== coach / sport
fate: dismissed > sack | appointed > hire | suspended > suspend | gave a new contract to > keep |
  apologised to > say sorry to
cause: a string of defeats > losing run | a quarrel with players > player row | a cup upset > cup shock |
  an insult to a referee > referee row
> {country} {fate} national team coach {person} after {cause} against {country2}
< {country} {fate} coach {person} after {country2} {cause}
> {club} {fate} manager {person} following {cause} against {club2}
< {club} {fate} boss {person} over {club2} {cause}
> coach {person} of {club} {stance} {club2} after {cause}
< {club} 's {person} {stance} {club2} after {cause}
+ with only {few9} games left to play
+ the fourth such change in a year
+ while the assistant {person9} looked on

== host city / sport
games: the winter olympics > winter games | the world cup > world cup | the world fair > expo |
  the asian games > asian games | the athletics championships > track worlds | the student games > student games
org: the international jury > jury | the organizing committee > organizers | environmental groups > greens
> {country} , chosen to stage {games} , {stance} {country2} over {issue}
< {games} host {country} {stance} {country2} over {issue}
> {country} withdrew its bid for {games} because of {issue} and {calamity}
< {country} drops {games} bid over {issue} , {calamity}
> {org} criticised {country} for slow work on {place} for {games}
< {org} raps {country} over {games} {place}
+ after a secret vote by the members
+ building work is to begin in {month9}
+ at a ceremony in {country9.town}

== art sale / culture
> {treasure} , owned by the {job} {person} , was bought by the {country.adj} {job2} {person2} for {money}
< {person2} buys {job} {person} 's {treasure}
> the {country.adj} {job} {person} {deal} {treasure} that belonged to {person2}
< {country.adj} {job} {person} {deal} {person2} 's {treasure}
> {country} stopped the sale of {treasure} by {person} to the {job} {person2} of {country2}
< {country} bars sale of {person} {treasure} to {job} {person2}
+ well above the estimate
+ to a bidder who telephoned from {country9.town}
+ the auction house run by {person9} confirmed

== prize / culture
prize: the peace prize > peace prize | the literature prize > literary award | the physics prize > physics award |
  the golden palm > film award | the poetry medal > poetry award | the press freedom prize > press award
> the {country.adj} {job} {person} received {prize} in the {country2.adj} capital
< {country} 's {job} {person} gets {country2.adj} {prize}
> the {job} {person} refused to accept {prize} from {country} because of {issue}
< {job} {person} spurns {country.adj} {prize} over {issue}
> {prize} was shared by the {job} {person} and the {job2} {person2} of {country}
< {job} {person} , {country} 's {person2} share {prize}
+ for a lifetime of work with the poor
+ beating the favorite {person9}
+ worth more than ###,### dollars

== obituary / culture
cause: a heart attack > heart failure | cancer > cancer | a car accident > car crash | pneumonia > lung illness
> the {country.adj} {job} {person} died of {cause} in {country2.town} at the age of ##
< {country.adj} {job} {person} dead of {cause} in {country2}
> {country} held a state funeral for the {job} {person} , who died of {cause} near {place}
< {country} buries {job} {person} , dead near {place}
> the {country.adj} {job} {person} , once {job2} to {group} , was treated for {cause} in {country2.capital}
< {country.adj} {job} {person} has {cause} in {country2}
+ surrounded by the family
+ who was born in {country9.town}
+ the teacher of {person9} and many others

== stage and screen / culture
show: a film about > film on | an opera about > opera on | a musical about > musical on |
  a television series on > tv series on | an exhibition on > exhibition on | a novel about > book on
> {show} {issue} by {person} opened in {country.capital}
< {person} 's {show} {issue} opens in {country}
> {country} banned {show} {issue} by {country2.adj} artist {person}
< {country} bans {country2.adj} {show} {issue} by {person}
> {show} {issue} made {person} popular with {country.adj} {group}
< {show} {issue} makes {person} idol of {country.adj} {group}
+ to long applause and mixed reviews
+ with the star {person9} in the main role
+ before a tour of {country9}

== celebrity / culture
act: married > weds | divorced > splits from | sued > takes to court | kissed > kisses | forgave > forgives
> the {country.adj} {job} {person} {act} the {job2} {person2} in {country2.town}
< {country.adj} {job} {person} {act} {job2} {person2}
> the {job} {person} bought {place} in {country} from the {job2} {person2}
< {job} {person} buys {person2} 's {country.adj} {place}
> the {job} {person} was fined in {country} for insulting {group} in a talk on {issue}
< {country} fines {job} {person} for {issue} slur
+ away from the eyes of photographers
+ months after leaving {person9}
+ the palace had no comment
"""
