"""Explanations of Placements: why one selects its clusters, and which ones it would select with other scores.

scheduling   the rules of OCM's placement controller, as pure functions
explanation  explains a Placement by these rules, as data
kinds        the kinds of these objects that nothing else reads
settings     its settings
reader       reads the objects from the hub, and asks OCM's own scheduler if that is possible
command      `dsf placement`
pages        the page's Placements, with `templates`
situations   the Placements of `dsf compare`, from a file or from the hub
replay       decisions of a Placement over time
"""
