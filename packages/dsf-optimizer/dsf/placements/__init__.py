"""Explanations of Placements: why a Placement selects its clusters, and what it would select with other scores.

scheduling   the rules of OCM's placement controller, as pure functions
explanation  explains a Placement by these rules, as data
kinds        the kinds of objects that only these modules and the optimiser read
settings     its settings
reader       reads the objects from the hub, and queries OCM's own scheduler if it is configured
command      `dsf placement`
pages        the page's Placements, with `templates`
situations   the Placements of `dsf compare`, from a file or from the hub
replay       decisions of a Placement over time
"""
