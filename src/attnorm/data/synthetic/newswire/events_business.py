"""Event kinds of the business and markets desks, in the notation of `notation`."""

EVENTS = """
== company results / business
period: the three months to march > first-quarter | the three months to june > second-quarter |
  the three months to september > third-quarter | the first six months of the year > half-year |
  the year to december > annual | the summer season > summer
figure: net profit > profit | operating profit > earnings | turnover > sales | pretax income > income
move: rose by ## percent > climbs | fell by ## percent > drops | more than doubled > doubles |
  dropped sharply > plunges | was almost unchanged > flat | grew faster than expected > beats forecasts
> {figure} at {company} , {sector} , {move} in {period}
< {company} {period} {figure} {move}
> {sector} {company} , based in the {country.adj} capital , reported that its {figure} {move} in {period}
< {country.adj} {sector} 's {period} {figure} {move}
> {country} 's largest company , {company} , saw its {figure} for {period} disappoint investors
< {country.adj} giant {company} {period} {figure} disappoints
+ hurt by a strong dollar and rising fuel costs
+ helped by strong demand in {country9}
+ its best result in nearly a decade
+ the first report since {person9} became chairman

== merger / business
stake: a controlling stake in > majority of | all shares of > whole of | half of > ## percent of
talk: agreed to buy > to acquire | offered to buy > bids for | abandoned plans to buy > drops bid for |
  completed its purchase of > takes over
> {company} {talk} its smaller rival {company2} , {sector} , for {money}
< {company} {talk} {sector} {company2}
> {sector} {company} said it would be bought by {company2} of {country} for {money} in cash and shares
< {country.adj} firm {company2} to buy {sector} {company}
> {company} , {sector} , {stance} {company2} during talks in {country} about a takeover
< {sector} {company} {stance} {company2} in {country}
> {sector} {company} acquired {stake} {company2} , which is listed in the {country.adj} capital
< {company} buys {stake} {country.adj} {company2}
+ creating one of the biggest groups in the industry
+ subject to the approval of regulators in {country9}
+ ending a takeover battle with {company9}

== bankruptcy / business
act: filed for bankruptcy protection > goes bankrupt | asked its creditors for more time > begs creditors for time |
  stopped paying its lenders > defaults on loans
cause: a scandal over > shamed for | accusations of > accused of | a costly trial for > tried for
> {company} , {sector} in {country} , {act} after {cause} {wrong}
< {country.adj} {sector} {company} , {cause} {wrong} , {act}
> a court in the {country.adj} capital declared {sector} {company} insolvent because of {cause} {wrong}
< {wrong} case bankrupts {country.adj} {sector} {company}
> crippled by {cause} {wrong} , {company} of {country} {act}
< {country} 's {company} {act} over {wrong}
+ putting thousands of jobs at risk
+ with debts of more than {money9}
+ blaming its bankers and former chairman {person9}

== layoffs / business
size: about #,### workers > #,### jobs | a tenth of its employees > ## pct of staff | half of its managers > managers
place: factories > plants | branches > outlets | offices > offices | laboratories > labs
> {sector} {company} decided to dismiss {size} at its {place} in {country} because of {issue}
< {company} to cut {size} at {country.adj} {place} over {issue}
> {company} , {sector} , told unions it was closing {few} {place} in the {country.adj} capital
< {sector} {company} to shut {few} {country.adj} {place}
> the staff of {company} in {country} {stance} {sector} {company2} over {issue}
< {country.adj} {company} staff {stance} {company2} over {issue}
+ citing weak demand and growing competition
+ a plan that trade unions promised to fight
+ part of a program to save {money9} a year

== product recall / business
fault: a risk of fire > fire hazard | faulty brakes > brake problem | traces of poison > poison scare |
  a labelling mistake > wrong label | bits of glass > glass fears
> {company} of {country} recalled {goods} sold in {country2} because of {fault}
< {country} 's {company} pulls {goods} in {country2} over {fault}
> {goods} made by {sector} {company} were withdrawn from shops in {country} after inspectors found {fault}
< {country} : {fault} prompts recall of {company} {goods}
+ urging customers to return them for a refund
+ a step that could cost the company {money9}
+ after complaints by buyers in {country9.town}

== new plant / business
> {sector} {company} {deal} {goods} near {place} in {country}
< {sector} {company} {deal} {goods} near {country.adj} {place}
> construction of a factory for {goods} was started by {company} near {place}
  in the {country.adj} town of {country.town}
< {company} starts {country.adj} {goods} plant near {place}
> the government of {country} invited {company} , {sector} , to open a plant for {goods}
< {country} woos {sector} {company} for {goods} plant
+ expected to employ several hundred people
+ its first investment outside {country9}
+ to be ready by the end of next year

== big order / business
act: cancelled > scraps | increased > raises | delayed > puts off
> {company} {deal} {goods} for {country} under a contract with {office} {person}
< {company} {deal} {goods} for {country} {office} {person}
> {sector} {company} lost an order for {goods} in {country} to {company2}
< {company2} beats {sector} {company} to {country.adj} {goods} deal
> {office} {person} of {country} {act} an order for {goods} at {company}
< {country} {office} {person} {act} {company} {goods} deal
+ the biggest sale in the history of the firm
+ after two years of talks with trade minister {person9}
+ a decision criticised by {company9}

== company chief / business
> {company} named {person} , a former {job} , as head of its business in {country}
< {company} picks {job} {person} as {country} boss
> {person} , who led {sector} {company} for {few} years , {stance} {group} in a farewell speech on {issue}
< {company} 's {person} {stance} {group} over {issue}
> the board of {company} {deed} its chairman {person} , a former {job} , for remarks about {issue}
< {company} {deed} {job} {person} over {issue}
+ in a reshuffle of the top management
+ to be followed by finance director {person9}
+ sending the shares sharply lower in {country9.capital}

== oil find / business
mineral: crude oil > oil | natural gas > gas | copper ore > copper | uranium > uranium | diamonds > gems | gold > gold
size: huge > giant | small > modest | promising > rich
> {company} found {size} deposits of {mineral} under {place} in the {country.adj} capital
< {company} strikes {size} {mineral} under {country.adj} {place}
> {company} , looking for {mineral} in {country} , {take} {place} in {country.town}
< {mineral} seeker {company} {take} {country.adj} {place}
> a {size} field of {mineral} was discovered in {country} by geologists working for {sector} {company}
< {country.adj} {mineral} find {size} for {sector} {company}
+ after drilling for almost two years
+ enough to supply {country9} for a decade
+ raising hopes for jobs in the poor region

== monopoly fine / business
> authorities in {country} ordered {company} , a company that {deal} {goods} , to pay {money} for {wrong}
< {country} fines {goods} firm {company} for {wrong}
> a court in {country} {stance} {sector} {company} and {deed} its chairman {person}
< {country.adj} court {deed} {company} 's {person}
> regulators in {country} {stance} {company} and searched {place} for traces of {wrong}
< {country} {stance} {company} over {wrong} at {place}
+ after a complaint by its rival {company9}
+ the heaviest penalty ever in the industry
+ following raids on its offices in {country9.capital}

== share prices / markets
mood: worries about > worries | hopes for progress on > hopes | confusion about > doubts
move: closed sharply higher > soar | ended slightly lower > dip | fell to a one-year low > hit year low |
  recovered from early losses > rebound | rose for a third day > extend gains | finished little changed > end flat
> share prices in the {country.adj} capital {move} because of {mood} {issue}
< {country.adj} stocks {move} on {issue} {mood}
> stocks on the {country.adj} exchange {move} , with {company} the most active issue , on {mood} {issue}
< {country.capital} shares {move} on {issue} {mood}
> amid {mood} {issue} , shares in {sector} {company} {move} in {country.capital} trading
< {country} 's {company} shares {move} on {issue} {mood}
+ with dealers waiting for figures from {country9}
+ in the heaviest trading of the month
+ led by bank and property issues

== currency / markets
move: strengthened to a six-month high > at half-year high | lost ## percent of its value > tumbles |
  steadied after days of selling > stabilizes | weakened slightly > eases | gained ground > firms
rival: the dollar > dollar | the euro > euro | the yen > yen | the swiss franc > franc | the pound > sterling
> the {country.adj} currency {move} against {rival}
< {country.adj} money {move} against {rival}
> {rival} {move} in {country.capital} after central bank governor {person} commented on {issue}
< {rival} {move} as {country} 's {person} talks of {issue}
> the central bank of {country} , worried by {rival} , {stance} {sector} {company}
< {country} , eyeing {rival} , {stance} {company}
+ as traders bet on lower interest rates
+ ahead of a meeting of ministers in {country9.capital}
+ on rumors of a loan from {org9}

== interest rates / markets
move: raised the key interest rate > hikes rates | lowered the key interest rate > cuts rates |
  left the key interest rate unchanged > keeps rates steady
cause: to fight rising prices > against inflation | to help a weak economy > to aid growth |
  to support the currency > to prop up currency | to cool the property market > to curb housing boom
> the central bank of {country} {move} {cause}
< {country} {move} {cause}
> governor {person} of the {country.adj} central bank {move} {cause}
< {country} 's {person} {move} {cause}
+ for the first time since {month9}
+ surprising most economists in {country9.capital}
+ a step long demanded by {org9}

== inflation / markets
figure: consumer prices > inflation | unemployment > jobless rate | industrial output > factory output |
  retail sales > shop sales | housing starts > home building | exports > foreign sales
move: rose to #.# percent > accelerates | fell for the third month > slides again | stayed the same > steady |
  reached a ten-year high > at decade high
> {figure} in {country} {move} in {month}
< {country.adj} {figure} {move} in {month}
> {org} warned that {figure} in {country} , which {move} in {month} , could worsen because of {issue}
< {org} says {issue} may hurt {country.adj} {figure}
> economists in {country.capital} were surprised when {figure} {move} in {month}
< {country} : {month} {figure} {move}
+ according to figures from the statistics office
+ adding to pressure on finance minister {person9}
+ compared with the same month of last year

== commodity prices / markets
move: climbed to a record > hit record | dropped by # percent > slump | recovered > bounce back
cause: a storm in > storm-hit | a harvest failure in > harvest-hit | a port strike in > strike-hit |
  a civil war in > war-torn
> prices of {goods} {move} because of {cause} {country}
< {cause} {country} : {goods} {move}
> traders in {country} {deal} {goods} heavily after {calamity} in {country2}
< {country} {deal} {goods} after {country2.adj} {calamity}
> {country} , a leading producer of {goods} , {stance} {org} because of {calamity}
< {goods} producer {country} {stance} {org} over {calamity}
+ before falling back in late trading
+ with buyers in {country9} holding off
+ as stocks in warehouses ran low
"""
