"""Common nouns for the slots, shared by many event kinds: article form > headline form (see `lexicon.options`).

Large shared pools, rather than a few words of each event's own, are what makes a headline depend on its article: the
event kind alone tells little of it.
"""

# plural, no article
GROUPS = """
students | farmers | war veterans > veterans | pensioners | teachers | fishermen | doctors |
train drivers > rail staff | hospital nurses > nurses | dock workers > dockers | coal miners > miners |
bank clerks | truck drivers > truckers | aid workers | foreign tourists > tourists | engineers | missionaries |
reporters > press | oil workers > oilmen | nuns | schoolchildren > pupils | opposition supporters > opposition |
human rights activists > activists | trade unionists > unionists | taxi drivers > cabbies |
police officers > police | soldiers > troops | firefighters | monks | lawyers | judges | airline pilots > pilots |
street vendors > vendors | postal workers > postmen | actors | shopkeepers | peasants | factory workers |
civil servants > bureaucrats | young mothers > mothers | football fans > fans | scientists > researchers |
prison guards > guards | sailors | hunters | villagers | waiters | librarians | musicians
"""

# noun phrases that one may quarrel about
ISSUES = """
rising food prices > food prices | election fraud > vote rigging | the closure of schools > school closures |
police brutality | nuclear power | higher wages > wages |
the retirement age > retirement age | job cuts | longer working hours > hours |
the sale of state companies > sell-off | immigration | the death penalty > death penalty |
land reform > land | fuel taxes > fuel duty | climate change > climate | drug trafficking > drugs |
terrorism | fishing rights > fishing | arms sales > weapons | gay marriage | energy supplies > energy |
drinking water > water | human rights > rights | press freedom > media | corruption |
military spending > war chest | foreign debt > debt | air pollution > smog | child labor |
road safety > road deaths | overcrowded prisons > prisons | hunting | the new constitution > charter |
foreign military bases > bases | border controls > border | nuclear waste |
minority languages > language | religious schools > religion | illegal logging > logging |
bank secrecy | internet censorship > web censorship | housing shortages > housing |
flood defenses > dikes | unpaid wages > back pay | tobacco advertising > tobacco ads | whaling |
missile defense > missile shield | visa rules | gun control > firearms | gambling |
poor hospitals > health care | power cuts | food safety > tainted food | fuel shortages > petrol |
war crimes | free trade | shipping lanes > sea lanes | alcohol abuse > alcohol
"""

# plural or mass, no article
GOODS = """
passenger jets > jets | patrol boats > boats | city buses > buses | wind turbines > turbines | army helicopters |
minivans | powdered milk > milk | laptop batteries > batteries | frozen meals > food | children 's toys > toys |
painkillers | electric heaters > heaters | bicycle helmets > helmets | steel | beef | bananas > fruit | textiles |
cars | shoes > footwear | timber | coffee | rice | computers > pcs | mobile telephones > telephones |
television sets > tvs | semiconductors > chips | tractors | vaccines | cigarettes | wine | cheese | sugar |
cotton | fertilizer | gold > bullion | diamonds | copper | natural gas > gas | crude oil > oil | coal | uranium |
rifles > arms | frozen fish > fish | chickens | newsprint > paper | cement | tires | furniture | cosmetics |
school books > books | cameras | tents > shelters | olive oil > oil | pianos | umbrellas
"""

# singular, with its article
PLACES = """
a crowded market > market | a police station > police post | an army camp > army base |
a foreign embassy > embassy | a primary school > school | a hilltop village > village | a railway bridge > bridge |
the main airport > airport | a border post > post | an oil refinery > refinery | a radio station > radio |
a museum > museum | a bank vault > bank | a monastery > monastery | a private villa > villa |
a luxury hotel > hotel | a coal mine > mine | a fireworks factory > fireworks plant |
a chemical plant > chemical works | a night club > disco | a gas pipeline > pipeline |
an old people 's home > nursing home | a textile mill > mill | a shopping center > center |
a football stadium > stadium | a hospital > hospital | a cathedral > church | a mosque > mosque |
a university > university | a cinema > cinema | a restaurant > eatery | a power station > power plant |
a sea port > port | a ski resort > resort | a refugee camp > camp | a women 's prison > prison |
a railway station > rail hub | a law court > court | a newspaper office > newspaper | a department store > store |
a theater > theater | a zoo > zoo | a castle > fortress | a plantation > farm | a tax office > tax office |
a hindu temple > temple | a beach bar > bar | a warehouse > warehouse | a swimming pool > pool |
a road tunnel > tunnel | a river dam > dam | a small island > islet | a nature park > park |
an orphanage > orphanage
"""

# singular, no article, said of a person
JOBS = """
businessman | army officer > officer | priest > cleric | politician | surgeon | football agent > agent |
army general > general | film director > filmmaker | football star > footballer | newspaper editor > editor |
policeman | jazz pianist > pianist | film actress > actress | novelist > writer | opera singer > diva | cartoonist |
composer > musician | chess champion > champion | fashion designer > designer | ballet dancer > dancer |
rock singer > rocker | supermodel | television host > tv host | racing driver > racer | prince | photographer |
mathematician | bishop | poet | banker > financier | magistrate | lawyer | spy | diplomat > envoy | sprinter |
swimmer | cyclist | weightlifter > lifter | skier | boxer | golfer | chef | historian | astronaut > spaceman |
magician | architect | union leader > union boss | mayor | hacker | smuggler | gangster > mobster |
rebel commander > commander | landowner | sculptor | playwright > dramatist | comedian | pilot | hermit
"""

# singular, with its article where it has one; it kills, destroys, threatens
CALAMITIES = """
a hurricane > hurricane | a typhoon > typhoon | a blizzard > blizzard | a sandstorm > sandstorm |
a tornado > twister | an avalanche > avalanche | torrential rain > rain | a broken dam > dam break |
a spring tide > tidal wave | a long drought > drought | a heat wave > heat | a forest fire > fire |
a volcanic eruption > eruption | a cold spell > cold snap | a strong earthquake > quake | a landslide > landslide |
a gas explosion > gas blast | a fire > fire | a roof collapse > cave-in | a hailstorm > hailstorm | lightning |
thick fog > fog | a plague of locusts > locust plague | a toxic cloud > toxic fumes | a flash flood > flood |
a power failure > blackout | a stampede > stampede | food poisoning > bad food | an oil spill > oil slick |
an outbreak of cholera > cholera | a rat plague > plague
"""

# singular, with its article
VEHICLES = """
a passenger plane > plane | a military helicopter > army helicopter | a cargo plane > cargo jet |
a glider > glider | a small private plane > light plane | a hot-air balloon > balloon |
an overcrowded ferry > ferry | an express train > train | a school bus > bus | an oil tanker > tanker |
a cable car > cable car | a trawler > trawler | an underground train > subway | a tourist coach > coach |
a cruise ship > ship | a freight train > goods train | a police van > police van | a racing yacht > yacht |
a fuel truck > truck | a submarine > submarine | a tram > streetcar | a river barge > barge |
a fire engine > fire truck | a minibus > minibus | a seaplane > seaplane | a lifeboat > lifeboat |
a motorcycle > bike | a convoy of trucks > convoy
"""

# what one is accused of
WRONGS = """
murder | bank fraud > fraud | genocide | drug smuggling > drug running | hijacking | child abuse > abuse |
money laundering > dirty money | spying > espionage | taking bribes | arson | tax evasion > tax dodging |
buying votes > vote buying | theft > stealing | wiretapping | price fixing > price cartel | false accounting |
dumping waste > polluting | blackmail | high treason > treason | kidnapping | illegal hunting > poaching |
drunk driving | forgery | insulting the president > insult | armed robbery | perjury | torture |
insider trading > insider deals | blasphemy > sacrilege | bigamy | sabotage | desertion
"""

# singular, with its article
TREASURES = """
a famous painting > painting | a landscape > landscape | a portrait > portrait | a love letter > letter |
a diary > diary | a diamond necklace > necklace | a bronze statue > statue | a manuscript > manuscript |
a vintage car > classic car | a violin > violin | a royal crown > crown | a rare stamp > stamp |
a gold coin > coin | a dinosaur skeleton > dinosaur | a wooden altar > altar | a mummy > mummy | a sword > blade |
a wedding dress > dress | a guitar > guitar | an ancient map > map | a porcelain vase > vase |
a tapestry > tapestry | a grand piano > piano | a silk carpet > rug | a golden mask > mask | a silver cup > cup |
a chess set > chess set | a marble bust > bust | a meteorite > meteorite | a royal throne > throne |
a church bell > bell | a pocket watch > watch
"""

ORGANISATIONS = """
the united nations > un | the european union > eu | the international monetary fund > imf |
the world bank > world bank | the red cross > red cross | the world health organization > who |
the african union > au | the arab league > arab league | the world trade organization > wto |
the atomic energy agency > nuclear agency | the labor organization > ilo | the gulf council > gulf council |
the pacific forum > pacific forum | the food and agriculture organization > fao |
the asian development bank > adb | the human rights court > rights court | the refugee agency > unhcr |
the western alliance > nato | the oil exporters ' cartel > opec | the wildlife fund > wwf | the criminal court > icc
"""

SECTORS = """
the mobile telephone manufacturer > phone maker | the car manufacturer > car maker |
the national airline > airline | the beer company > beer firm | the pharmaceutical company > drugmaker |
the commercial bank > bank | the petroleum company > oil giant | the supermarket chain > supermarket |
the steel producer > steelmaker | the insurance company > insurance firm | the newspaper group > newspaper firm |
the aircraft manufacturer > planemaker | the computer company > pc maker | the mining company > mining firm |
the electricity company > utility | the semiconductor manufacturer > chipmaker | the shipping company > shipping firm |
the railway company > railway firm | the tobacco company > cigarette maker | the television network > tv network |
the construction company > construction firm | the chemicals company > chemical giant
"""

OFFICES = """
chancellor | prime minister > pm | foreign minister > fm | finance minister |
interior minister > security chief | defense minister > defense chief | justice minister |
education minister > education chief | trade minister | health minister |
vice president | labor minister > labor chief | farm minister |
transport minister > transport chief
"""

# transitive verbs, past tense > headline present: what one does to people and bodies
STANCES = """
criticised > slams | praised > hails | questioned > doubts | defended > defends | ridiculed > mocks | warned > warns |
thanked > thanks | misled > misleads | consulted > asks | supported > backs | ignored > snubs | insulted > insults |
surprised > stuns | angered > irks | reassured > calms | sued > sues
"""

# ... to a person in one's power
DEEDS = """
arrested > nabs | dismissed > sacks | appointed > hires | suspended > suspends | released > frees | honored > honors |
jailed > jails | expelled > ousts | interrogated > grills | fined > fines | invited > invites | pardoned > pardons |
deported > deports | punished > punishes
"""

# ... to a place
TAKINGS = """
wrecked > wrecks | damaged > hits | blocked > blocks | bought > buys | closed > shuts | visited > tours |
raided > raids | opened > opens | guarded > guards | sold > sells | occupied > seizes |
rebuilt > rebuilds | left > quits | leased > rents
"""

# ... to goods
DEALINGS = """
banned > bars | ordered > orders | taxed > taxes | exported > ships | recalled > pulls | tested > tests |
burned > burns | promoted > touts | hoarded > hoards | auctioned > auctions |
donated > donates | imported > imports | inspected > checks
"""
