"""Event kinds of the conflict and crime desks, in the notation of `notation`."""

EVENTS = """
== bomb attack / conflict
bomb: a car bomb > car bomb | a suicide bomber > suicide blast | a land mine > mine | a hand grenade > grenade |
  a parcel bomb > letter bomb | a mortar shell > shelling
> {bomb} killed {few} {group} at {place} in the {country.adj} town of {country.town}
< {bomb} kills {group} at {country.adj} {place}
> {country.adj} {office} {person} {stance} {org} after {bomb} struck {place}
< {country.adj} {office} {person} {stance} {org} after {place} {bomb}
> rebel commander {person} {stance} {office} {person2} after an attack with {bomb} on {place} in {country}
< rebel {person} {stance} {country} {office} {person2}
+ in the bloodiest attack of the year
+ shattering windows and setting cars ablaze
+ on the eve of a visit by {person9}

== rebel fighting / conflict
rebels: guerrillas > rebels | government forces > army | islamic militants > militants | peacekeepers > un force |
  pirates > buccaneers | militiamen > militia | paratroopers > elite force | mercenaries > hired guns
act: captured > seize | withdrew from > leave | attacked > storm | surrounded > encircle
> {rebels} {act} {place} near {country.town} in {country}
< {rebels} {act} {country.adj} {place}
> {rebels} {act} {place} in the {country.adj} capital and took {few} {group} prisoner
< {rebels} {act} {place} , hold {country.adj} {group}
> {office} {person} of {country} vowed revenge after {rebels} {act} {place}
< {country} {office} {person} angry as {rebels} {act} {place}
+ after a night of heavy shelling
+ forcing hundreds of villagers to flee
+ both sides suffered losses

== hostages / conflict
act: kidnapped > abduct | released > free | put on trial > try | threatened > menace
> gunmen led by {person} {act} {country.adj} {group} near {place} in {country2}
< {country2} gunmen {act} {country.adj} {group} near {place}
> rebels in {country2} {act} {group} from {country} in a dispute about {issue}
< {country2} rebels {act} {country.adj} {group} over {issue}
> rebels holding {country.adj} {group} demanded an exchange for the {job} {person}
< captors of {country.adj} {group} want {job} {person}
+ who were on their way to a hospital
+ a ransom of {money9} was mentioned
+ after talks led by {person9}

== coup / conflict
unit: the presidential guard > guards | young army officers > officers | the air force > airmen |
  a group of generals > generals | mutinous troops > mutineers
act: overthrew > oust | threatened > threaten | promised loyalty to > back | arrested > jail
> {unit} in {country} {act} {office} {person} in a dispute about {issue}
< {country.adj} {unit} {act} {office} {person} over {issue}
> {unit} took {place} in {country} and {act} {office} {person}
< {unit} grab {country.adj} {place} , {act} {office} {person}
> the coup leader {person} , a former {job} , {deed} {group} in {country}
< {country} coup leader {person} {deed} {group}
+ and closed the borders and the airport
+ with tanks patrolling the streets
+ a move condemned by {org9}

== refugees / conflict
act: moved to > reach | were banned from > barred from | fled from > run from | returned to > back in
> thousands of {country.adj} refugees {act} {country2} because of {calamity}
< {country.adj} {calamity} refugees {act} {country2}
> {country} {deed} {group} who fled {calamity} in {country2}
< {country} {deed} {group} after {country2.adj} {calamity}
> {org} began to bring home {country.adj} {group} who fled {calamity}
< {org} takes home {country.adj} {group} after {calamity}
+ many of them women and children
+ sleeping in the open without clean water
+ in the worst exodus since {month9}

== arms test / conflict
arm: a medium-range missile > missile | a new fighter plane > fighter jet | a nuclear device > atom bomb |
  a spy drone > drone | an anti-tank rocket > rocket | a poison gas shell > gas shell
act: successfully tested > tests | showed for the first time > unveils | sold > sells | secretly bought > buys
> {country} {act} {arm} near {place} despite protests from {country2}
< {country} {act} {arm} near {place} , angers {country2}
> {country} denied a report by {org} that it {act} {arm} made in {country2}
< {country} rejects {org} claim over {country2.adj} {arm}
> {office} {person} of {country} defended the decision on {arm} against criticism by {group} in {country2}
< {country} {office} {person} defends {arm} against {country2.adj} {group}
+ alarming governments across the region
+ at a desert site near {country9.town}
+ in violation of a treaty

== arrest / crime
act: arrested > nabs | questioned > grills | released > frees | were looking for > hunts
> the police of {country} {act} the {job} {person} , wanted by {country2} for {wrong}
< {country} {act} {country2} 's {wrong} suspect {person}
> {person} , a former {job} accused of {wrong} , gave himself up at {place} in the {country.adj} capital
< {wrong} suspect {person} surrenders at {country.adj} {place}
> the {job} {person} , jailed for {wrong} in {country} , {stance} {group} in a letter
< jailed {country.adj} {job} {person} {stance} {group}
+ following a tip from a neighbor
+ carrying a false passport and {money9}
+ who was once a friend of {person9}

== extradition / crime
> {country} extradited the {country2.adj} {job} {person} , who is accused of {wrong}
< {country} hands over {country2.adj} {wrong} suspect {person}
> a judge in {country} {deed} the {job} {person} , sought by {country2} for {wrong}
< {country.adj} judge {deed} {job} {person} sought by {country2}
> {country} asked {country2} to hand over {person} , a former {job} sought for {wrong}
< {country} wants {job} {person} from {country2} for {wrong}
+ after a legal battle of almost two years
+ who insists on being innocent
+ defended by the lawyer {person9}

== verdict / crime
> a court in the {country.adj} capital sentenced the {job} {person} to {few} years in prison for {wrong}
< {country.adj} {job} {person} gets {few} years for {wrong}
> {person} , a former {job} accused of {wrong} , was found not guilty in {country}
< {country} acquits {job} {person} of {wrong}
> the {job} {person} went on trial in the {country.adj} town of {country.town} for {wrong}
< {wrong} trial of {country.adj} {job} {person} opens
> the supreme court of {country} overturned the conviction of the {job} {person} for {wrong}
< {country} quashes {job} {person} 's {wrong} verdict
+ after a trial that gripped the nation
+ where the widow {person9} wept in the dock
+ although the main witness withdrew a statement

== smuggling / crime
act: discovered > finds | burned > burns | auctioned > sells off | lost > loses
> the customs service of {country} {act} {goods} from {country2} that were hidden in {vehicle}
< {country} {act} {country2.adj} {goods} from {vehicle}
> {goods} smuggled in {vehicle} by {country.adj} {group} turned up at the port of {country2.capital}
< {country.adj} {group} held in {country2} with {goods} in {vehicle}
> the {job} {person} smuggled {goods} into {country} in {vehicle}
< {job} {person} hid {goods} in {vehicle} to {country}
+ the largest haul in recent years
+ and detained {few9} men from {country9}
+ with the help of sniffer dogs

== robbery / crime
> {group} stole {treasure} worth {money} from {place} in the {country.adj} capital
< {group} snatch {treasure} at {country.adj} {place}
> {country.adj} police recovered {treasure} taken from {place} in {country2} and arrested the {job} {person}
< {country} holds {job} {person} over {country2.adj} {treasure}
> {treasure} was stolen from the {job} {person} , who {stance} the police of {country}
< robbed of {treasure} , {job} {person} {stance} {country}
+ after switching off the alarm
+ while the guards watched a football match
+ in a raid that took only minutes

== prison riot / crime
act: ended > over | spread > grows | turned violent > turns bloody | began > starts
> a revolt by jailed {group} over {issue} {act} in the {country.adj} town of {country.town}
< {country.adj} revolt of {group} over {issue} {act}
> prisoners in {country} protesting against {issue} took the {job} {person} hostage
< {country.adj} inmates seize {job} {person} over {issue}
+ after special police stormed the roof
+ among them the murderer {person9}
+ and fires burned for hours
"""
