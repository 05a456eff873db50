"""Explains Placements: why a Placement selects its clusters, and which clusters it would select with other scores.

scheduling   the rules of OCM's placement controller, as pure functions
explanation  explains a Placement by these rules, as data
kinds        the kinds of objects that only these modules and the optimiser read
settings     the settings of these modules
reader       reads the objects from the hub, and queries OCM's own scheduler if it is configured
command      `dsf placement`
pages        the page's Placements, with `templates`
situations   the Placements of `dsf compare`, from a file or from the hub
replay       decisions of a Placement over time
"""
