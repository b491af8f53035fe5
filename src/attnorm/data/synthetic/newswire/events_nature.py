"""Event kinds of the disaster and science desks, in the notation of `notation`."""

EVENTS = """
== earthquake / disaster
size: a strong > powerful | a light > minor | a violent > deadly | a moderate > mild
act: destroyed > flattens | damaged > cracks | shook > rocks | emptied > clears
> {size} earthquake measuring #.# on the open scale {act} {place} in the {country.adj} capital and hurt {few} {group}
< {size} quake {act} {country.adj} {place} , {group} hurt
> {size} earthquake {act} {place} near {country.town} while {office} {person} was there with {group}
< {size} quake {act} {place} with {country} {office} {person}
> {size} earthquake in {country} hurt {few} {country2.adj} {group} who were visiting {place}
< {size} {country} quake hurts {country2.adj} {group} at {place}
+ sending people running into the streets
+ felt as far away as {country9.capital}
+ the third such tremor since {month9}

== rescue / disaster
act: saved > save | searched for > seek | found > find | buried > bury
> {group} {act} {few} {group2} who were missing after {calamity} in {country}
< {group} {act} {group2} after {country.adj} {calamity}
> {office} {person} of {country} thanked {group} who {act} {group2} when {calamity} struck
< {country} {office} {person} lauds {group} after {calamity}
> {country} sent {group} to {country2} to help victims of {calamity}
< {country.adj} {group} to aid {country2} after {calamity}
+ and cut off the town of {country9.town}
+ boats and helicopters were used
+ the damage was put at {money9}

== storm / disaster
act: destroyed > wrecks | damaged > hits | threatened > nears | cut off > isolates
> {calamity} {act} {place} in the {country.adj} capital , forcing {few} {group} to leave
< {calamity} {act} {country.adj} {place} , {group} flee
> at least {few} {group} were missing in the {country.adj} town of {country.town} after {calamity} {act} {place}
< {country.adj} {group} missing as {calamity} {act} {place}
> {country} evacuated {group} from {place} because of {calamity}
< {country} moves {group} from {place} before {calamity}
+ uprooting trees and tearing off roofs
+ with winds of up to ### kilometers an hour
+ before moving on to {country9}

== crash / disaster
act: crashed into > slams into | almost hit > misses | came to rest near > stops near | got stuck at > stuck at
> {vehicle} with {few} {country.adj} {group} on board {act} {place} in {country2}
< {vehicle} with {country.adj} {group} {act} {country2.adj} {place}
> {vehicle} carrying {office} {person} of {country} {act} {place}
< {vehicle} with {country} {office} {person} {act} {place}
> {vehicle} used by {country.adj} {group} {act} {place} where {office} {person} lives
< {country.adj} {group} ' {vehicle} {act} {person} 's {place}
+ minutes after leaving {country9.capital}
+ in bad weather and poor visibility
+ the flight recorder was not recovered

== transport accident / disaster
act: caught fire > ablaze | overturned > overturns | hit a bridge > rams bridge | broke in two > breaks up
> {vehicle} full of {goods} {act} near {place} in the {country.adj} capital
< {vehicle} with {goods} {act} near {country.adj} {place}
> dozens of {group} were rescued when {vehicle} from {country} {act} near {country2.town}
< {group} saved as {country.adj} {vehicle} {act} in {country2}
> {country.adj} {office} {person} {deed} {group} after {vehicle} {act} near {country.town}
< {country.adj} {office} {person} {deed} {group} as {vehicle} {act}
+ the driver was drunk
+ in thick fog and strong winds
+ divers were searching for victims

== blast and fire / disaster
> {calamity} at {place} in the {country.adj} town of {country.town} killed {few} {group}
< {group} die in {calamity} at {country.adj} {place}
> {few} {group} were trapped by {calamity} at {place} in the {country.adj} capital
< {calamity} traps {group} in {country.adj} {place}
> {country} arrested the owner of {place} , the {job} {person} , after {calamity}
< {country} holds {place} owner {person} after {calamity}
+ which was built without a permit
+ firefighters needed hours to reach the scene
+ in the worst accident since {month9}

== crop damage / disaster
act: destroyed > ruins | threatened > menaces | delayed > holds up | improved > helps
> {calamity} in {country2} {act} supplies of {goods} for {country}
< {country2.adj} {calamity} {act} {country.adj} {goods}
> {calamity} forced {country} to ask {org} for {goods}
< {country} seeks {org} {goods} over {calamity}
> {calamity} in {country} {act} production of {goods} at {company}
< {country.adj} {calamity} {act} {company} {goods}
+ the worst of its kind in living memory
+ and prices rose in {country9.capital}
+ farmers were praying for a change

== epidemic / science
disease: cholera > cholera | bird flu > flu | measles > measles | malaria > fever | mad cow disease > mad cow |
  foot-and-mouth disease > livestock virus | a mystery virus > mystery bug | meningitis > brain fever
act: killed > kills | infected > infects | spared > spares
> an outbreak of {disease} {act} {few} {group} near {place} in {country}
< {disease} {act} {group} near {country.adj} {place}
> {country} confirmed a case of {disease} among {country2.adj} {group}
< {country2.adj} {group} bring {disease} to {country}
> {country} {take} {place} to stop {disease} from spreading to {group}
< {country} {take} {place} for fear of {disease}
> {org} declared {country.adj} {group} free of {disease}
< {org} says {country.adj} {group} rid of {disease}
+ doctors lacked beds and medicines
+ and experts flew in from {country9}
+ the most severe for a generation

== drug approval / science
drug: a vaccine against malaria > malaria vaccine | a pill for weight loss > diet pill |
  a cancer treatment > cancer drug |
  a flu spray > flu spray | an artificial heart > heart device | a migraine tablet > migraine pill |
  a male contraceptive > birth pill
act: approved > clears | rejected > turns down | delayed its decision on > puts off | banned > outlaws
> {country} {act} {drug} developed by {company} of {country2}
< {country} {act} {company} 's {country2.adj} {drug}
> {drug} made by {company} , {sector} , failed in tests on {country.adj} {group}
< {company} {drug} fails tests on {country.adj} {group}
> professor {person} of {country} warned {group} that {drug} from {company} was dangerous
< {country} 's {person} warns {group} of {company} {drug}
+ taken by some #,### patients
+ in a setback for its partner {company9}
+ pending a study led by doctor {person9}

== space launch / science
craft: a communications satellite > telecoms satellite | a weather satellite > weather satellite |
  a moon probe > lunar probe | a space telescope > telescope | a manned capsule > crew | a research rocket > rocket
act: put into orbit > launches | lost contact with > loses | delayed the launch of > postpones |
  brought back > retrieves
> {country} {act} {craft} built by {company} of {country2}
< {country} {act} {company} 's {country2.adj} {craft}
> {company} {act} {craft} for {org} from {country}
< {company} {act} {org} {craft} in {country}
> astronaut {person} , a former {job} from {country} , {stance} {group} in a call from {craft}
< astronaut {person} {stance} {country.adj} {group}
+ from a launching pad near {country9.town}
+ after a delay caused by a fuel leak
+ at a cost of {money9}

== discovery / science
act: discovered > unearths | lost > loses | photographed > pictures | restored > repairs
> professor {person} of {country} {act} {treasure} in {place} in the {country2.adj} capital
< {country} 's {person} {act} {treasure} in {country2.adj} {place}
> {treasure} which {country.adj} {group} {act} in {place} was dated by professor {person}
< {person} dates {treasure} of {country.adj} {group}
> {country} demanded the return of {treasure} , taken from {place} by {group} from {country2}
< {country} wants {treasure} back from {country2.adj} {group}
+ thought to be #,### years old
+ shedding new light on the past
+ with money from {company9}

== wildlife / science
animal: elephants > elephants | sea turtles > turtles | gray whales > whales | brown bears > bears | tigers > tigers |
  wild horses > horses | eagles > raptors | mountain gorillas > apes | sharks > sharks | wolves > wolves
act: attacked > attack | escaped from > escape | ate > devour | blocked > block
> {few} {animal} {act} {place} in the {country.adj} capital
< {few} {animal} {act} {country.adj} {place}
> {country} {deal} {goods} for {country2} in exchange for {few} {animal}
< {country} {deal} {goods} for {country2.adj} {animal}
> {country} {deed} {group} for hunting {animal} after an appeal by {org}
< {country} {deed} hunters of {animal} after {org} plea
+ their number had fallen to a few hundred
+ to the joy of nature lovers
+ biologist {person9} was not surprised
"""
