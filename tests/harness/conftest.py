from support.toy_cells import toy_cell as toy_cell
from support.toy_cells import toy_source as toy_source
