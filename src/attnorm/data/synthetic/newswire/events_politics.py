"""Event kinds of the politics and diplomacy desks, in the notation of `notation`."""

EVENTS = """
== election / politics
party: the social democrats > leftists | the conservatives > right | the greens > greens |
  the liberal party > liberals | the nationalists > hardliners | the islamic party > islamists
lead: a narrow lead > narrowly ahead | a clear lead > far ahead | an absolute majority > in landslide
> voters in {country} gave {party} of {person} {lead} in parliamentary elections
< {person} 's {party} {lead} in {country.adj} vote
> {person} , a former {job} , defeated {office} {person2} in the presidential election in {country}
< {job} {person} beats {office} {person2} in {country}
> {party} in {country} {stance} their candidate {person} over {issue}
< {country.adj} {party} , {person} in {issue} row
> {country.adj} {office} {person} {stance} {group} ahead of the election in {month}
< {country.adj} {office} {person} {stance} {group} before vote
+ with most of the ballots counted
+ in a campaign overshadowed by violence in {country9.town}
+ observers from {org9} called it fair

== resignation / politics
act: resigned > quits | refused to resign > stays on | was dismissed > fired | took a leave > steps aside
> {country.adj} {office} {person} {act} over {issue}
< {country} 's {office} {person} {act} over {issue}
> {person} rejected a demand by {group} to resign as {office} of {country}
< {country.adj} {office} {person} defies {group}
> following a dispute about {issue} with {group} , the {office} of {country} , {person} , {act}
< {country.adj} {office} {person} {act} in {issue} row
+ throwing the coalition into crisis
+ and was replaced by the deputy {person9}
+ the third departure from the government this year

== new minister / politics
> president {person} of {country} appointed {person2} , a former {job} , as {office}
< {job} {person2} named {country.adj} {office}
> {person} , a former {job} who once lived in {country2} , was sworn in as {office} in {country.capital}
< {country} gets {job} {person} as {office}
> {country.adj} president {person} {deed} the former {office} {person2} , once a {country2.adj} citizen , for {wrong}
< {person} {deed} {country} 's ex-{office} {person2} for {wrong}
+ promising to fight corruption and poverty
+ after weeks of bargaining between the parties
+ succeeding {person9} who retired in {month9}

== budget vote / politics
law: a law on > law | a budget increase for > funds | a strict ban on > ban | a reform of > reform
> the parliament of {country} approved {law} {issue} proposed by {office} {person}
< {country.adj} mps pass {person} 's {issue} {law}
> deputies in the {country.adj} capital {stance} {office} {person} over {law} {issue}
< {country.adj} mps : {issue} {law} row with {person}
> {office} {person} withdrew {law} {issue} in {country} after protests by {group}
< {country} {office} {person} drops {issue} {law} as {group} protest
+ after a stormy debate lasting through the night
+ by a majority of only {few9} votes
+ demanded by {org9} as a condition for loans

== coalition crisis / politics
> the ruling coalition in {country} {stance} {org} in a statement on {issue}
< {country.adj} coalition {stance} {org} on {issue}
> {office} {person} of {country} narrowly survived a confidence vote on {issue}
< {country} {office} {person} survives {issue} vote
> {person} and {person2} agreed to form a new government in {country} , ending a dispute about {issue}
< {person} , {person2} bury {issue} row in {country}
+ making early elections likely in {month9}
+ with {few9} members of the ruling party abstaining
+ the second crisis since {person9} took power

== corruption inquiry / politics
> prosecutors in {country} accused former {office} {person} of {wrong}
< {country} 's ex-{office} {person} charged with {wrong}
> {person} , the {office} of {country} , denied {wrong}
< {country.adj} {office} {person} rejects {wrong} claim
> police searched the home of {office} {person} in {country.capital} on suspicion of {wrong}
< {country} raids {office} {person} in {wrong} probe
+ in connection with a contract for {company9}
+ based on documents published by a newspaper
+ the most serious case since the fall of {person9}

== opinion poll / politics
> most {group} in {country} were worried about {issue} , a survey for {org} showed
< {issue} tops {country.adj} {group} ' fears : {org} poll
> a poll found that support for {office} {person} in {country} among {group} dropped because of {issue}
< {country.adj} {group} turn from {office} {person} over {issue}
> voters in {country} trusted {group} more than {office} {person} in a survey on {issue}
< {country} trusts {group} over {office} {person} on {issue}
+ with one in ten undecided
+ the largest such change since {month9}
+ based on interviews in {country9.town} and the capital

== protest march / politics
act: marched through > march | blocked roads in > block roads | clashed with police in > riot |
  gathered in > rally
> thousands of {group} {act} {country.capital} in protest against {issue}
< {country.adj} {group} {act} over {issue}
> {office} {person} of {country} {stance} {group} angry about {issue}
< {country} {office} {person} {stance} {group} over {issue}
> {country.adj} police {deed} {few} {group} who protested against {issue}
< {country} {deed} {group} over {issue}
+ in the largest demonstration for years
+ shouting slogans and burning flags
+ defying a ban by the city council

== strike / politics
act: began a strike > walk out | ended their strike > back to work | threatened to strike > plan stoppage |
  refused to work overtime > work to rule
> {country.adj} {group} {act} over {issue}
< {country.adj} {group} {act} over {issue}
> a strike by {group} over {issue} paralyzed {place} in the {country.adj} town of {country.town}
< {issue} row : {group} cripple {country.adj} {place}
> {country.adj} {group} {act} after {office} {person} proposed a compromise on {issue}
< {country} 's {group} {act} despite {person} 's {issue} offer
+ stranding tens of thousands of passengers
+ costing the economy {money9} a day
+ despite an appeal by labor minister {person9}

== state visit / diplomacy
act: arrived in > in | called off a visit to > cancels trip to | ended a visit to > leaves | was invited to > to visit
> {country.adj} {office} {person} {act} {country2.capital} for talks on {issue}
< {country.adj} {office} {person} {act} {country2} for {issue} talks
> {office} {person} {act} {country} amid a dispute about {issue}
< {office} {person} {act} {country} amid {issue} row
> the {office} of {country} , {person} , received {person2} of {country2} to discuss {issue}
< {country} {office} {person} , {person2} discuss {issue}
+ the first such visit in almost a decade
+ accompanied by a delegation of business leaders
+ before flying on to {country9}

== treaty / diplomacy
act: signed > ink | prepared > draft | cancelled > end | extended > prolong
> {country} and {country2} {act} a treaty on {issue} sponsored by {org}
< {country} , {country2} {act} {org} pact on {issue}
> the senate of {country} {stance} {country2} in a resolution on {issue}
< {country.adj} senate {stance} {country2} on {issue}
> {office} {person} of {country} {stance} {group} in a speech on {issue} in {country2}
< {country} {office} {person} {stance} {group} on {issue} in {country2}
+ hailed by {org9} as a milestone
+ in a ceremony at the palace in {country9.capital}
+ opposed by the party of {person9}

== peace talks / diplomacy
rebels: separatist guerrillas > separatists | maoist rebels > maoists | islamic insurgents > insurgents |
  tribal militias > militias | the former rebels > ex-rebels
step: agreed to a ceasefire > agree truce | broke off peace talks > end peace talks |
  exchanged dozens of prisoners > swap prisoners | resumed peace negotiations > back at peace table
> the government of {country} and {rebels} {step}
< {country} , {rebels} {step}
> {rebels} in {country} {step} after an appeal by {org}
< {country.adj} {rebels} {step} on {org} plea
> the leader of {rebels} in {country} , {person} , {stance} {group} in a message on {issue}
< {country.adj} {rebels} ' {person} {stance} {group} on {issue}
+ raising hopes for an end to the ten-year war
+ at a hotel in {country9.capital}
+ with {person9} acting as mediator

== sanctions / diplomacy
step: punished > punishes | threatened to expel > may expel | dropped its charges against > clears | condemned > slams
> {org} {step} {country} over {issue}
< {org} {step} {country} over {issue}
> {country} {step} its neighbor {country2} because of {issue}
< {country} {step} {country2} for {issue}
> {office} {person} of {country} accused {org} of a biased report on {issue}
< {country} {office} {person} attacks {org} over {issue}
+ after a debate that lasted late into the night
+ and warned of further measures
+ with {country9} voting against

== foreign aid / diplomacy
> {org} promised {goods} to {country.adj} {group} who suffered from {calamity}
< {org} offers {goods} to {country.adj} {calamity} victims
> {country} {deal} {goods} for {country2} , where {office} {person} had appealed for help after {calamity}
< {country} {deal} {goods} for {country2} {calamity} victims
> {org} stopped deliveries of {goods} to {country} because {office} {person} was accused of {wrong}
< {org} halts {goods} to {country} over {wrong}
+ to be paid out over two years
+ the first such help since {month9}
+ following a request by {person9}

== border dispute / diplomacy
> troops of {country} led by general {person} {take} {place} in {country2}
< {country} 's {person} {take} {country2.adj} {place}
> {country} asked {org} to settle its dispute with {country2} over {place}
< {country} seeks {org} help in {country2} {place} row
> {country} handed back {place} to {country2} under an accord brokered by {org}
< {country} returns {place} to {country2}
+ claimed by both since independence
+ in the most serious incident for years
+ near the town of {country9.town}

== spy expulsion / diplomacy
envoy: the ambassador of > ambassador | two diplomats from > diplomats | the military attache of > attache |
  a consul of > consul | a reporter from > reporter
> {country} {deed} {envoy} {country2} because of {wrong}
< {country} {deed} {country2.adj} {envoy} over {wrong}
> {country} summoned {envoy} {country2} to complain about {wrong}
< {country} grills {country2.adj} {envoy} about {wrong}
+ giving them two days to leave
+ souring ties that improved under {person9}
+ a charge dismissed as absurd in {country9.capital}

== trade dispute / diplomacy
step: imposed import duties on > slaps tariffs on | banned imports of > bars | lifted a ban on > allows |
  lowered taxes on > eases duty on
> {country} {step} {goods} from {country2}
< {country} {step} {country2.adj} {goods}
> {org} ruled that {country} had broken trade rules when it {step} {goods} from {country2}
< {org} faults {country} in {country2.adj} {goods} row
> {office} {person} of {country2} {stance} {country} in a quarrel about {goods}
< {country2} {office} {person} {stance} {country} over {goods}
+ drawing an angry response from exporters
+ trade worth {money9} a year
+ in a dispute dating back to {month9}

== summit / diplomacy
bloc: gulf leaders > gulf leaders | african heads of state > african leaders | balkan ministers > balkan ministers |
  pacific nations > pacific states | central bankers > central bankers | rich nations > rich states
> {bloc} opened a summit in {country.capital} devoted to {issue}
< {country} hosts {bloc} for {issue} talks
> a meeting of {bloc} with {org} in {country.town} discussed {issue} and {goods}
< {bloc} , {org} discuss {issue} , {goods} in {country}
> {office} {person} {stance} {bloc} at a meeting in {country.capital} on {issue}
< {office} {person} {stance} {bloc} on {issue} in {country}
+ under heavy security and in pouring rain
+ with {person9} staying away
+ while demonstrators rallied outside
"""
