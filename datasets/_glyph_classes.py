"""The characters behind the three embedded data sets.

No pretraining character looks like one of the other two sets: all were kept below LOOK_ALIKE in
``_glyph_fonts.likeness`` against every digit and every basic Latin, Greek, Cyrillic and chosen Armenian letter, and
letters that are a variant of one of those ("with hook", "with stroke") were left out by name.
"""

LOOK_ALIKE = 0.85  # largest likeness allowed between a pretraining class and a class of the other sets

DOMAINS = "0123456789"

HUNDRED = (  # Latin, Greek, Cyrillic and Armenian letters, none like a digit, no two the same at one size
    "ACDEHKLMNPQRUVWXYZabdefkmnoqrtyΔΞΣΦΨαβζηλμνξρςτωДЖЙЛЦЧШЩЪЫЮЯвьэԳԴԵԶԷԸԹԻԽԾԿՀՁՃՄՆՇՉՊՌՎՐՒՔՖէիխծկճմնչպջվ"
)

PRETRAIN = (  # Georgian, Hebrew, Coptic and rare letters, punctuation, arrows, operators, shapes, Canadian syllabics
    'დკოჟრფღჴϗϟϠϻЂЉЊӔŒȸɁʖʞʤʫʬʭᴖᴗᴝᴞ՝՞՟։჻"#%&+<=>_¤©«¬®±»'
    "‘“‣‰′‹›⁋₧₯↖↗↘↙↜↝↩↪↯↰↱↲↳↴↶↷↸↹↺↻↽⇀⇄⇅⇐⇑⇖⇗⇘⇙⇨⇩⇫⇰⇱⇲⇵⇶⇿∓"
    "√∝∞∟∠∸∹≐≒≓≡≤≥⊂⊆⊇⊏⊐⊑⊒⊔⊞⊟⊠⊡⊢⊣⌂⌑⌘⌙⌥⏏■▤▥▧▫▭▲▷►▻▽◀◁◄◅◇◉"
    "○◍◎◐◒◓◔◕◛◜◝◞◟◢◣◤◥◧◨◫◬◭◰◱◲◳◴◵◶◷◸◹◺◿☀☹☺☼☿♀♃♅♡♣♤♧♩♪♫♬"
    "♭⩫⬒⬓⬖⬗⬘⬙⸘⸟⸮ႢႥႧႨႪႫႰႵႼႾჃჅⴀⴂⴆⴏⴐⴚⴜⴝⴟⴢⴤⴥϢϦϧⅎאבגדהלמעפצק"
    "רױͲѤѦѨѺҨԅԉԕԗꙣꙦꙮᴥỺꜨꜩꜴꜸꜼꝆᐅᐋᐏᐒᐘᐟᐫᐴᑁᑆᑐᑗᑛᑠᑣᑰᑵᑸᑻᑿᒊᒏᒔᒗᒚᒟᒭ"
    "ᓀᓅᓉᓍᓕᓘᓝᓣᓦᓩᓮᓶᓹᔂ"
)
