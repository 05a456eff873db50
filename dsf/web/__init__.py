"""The web page: scores, reasons for missing ones, and actions.

service         runs the page, the JSON API and the fleet's metrics as a service
app             builds the application
guard           checks host names, and applies the headers of proxies (outer middleware)
site            renders whole pages with access control
hubname         finds the name of the hub, for pages and titles of tabs
rendering       renders views as HTML, which open pages poll
states          names the states of a pair
pagedata        reads the data of pages from `dsf.fleet`
pages           defines pages and actions, and loads those of plug-ins
views           lists the pages of this package, and builds their data
search          parses and executes searches
clustergroups   groups the fleet by ClusterSet or label
charts          computes the coordinates of bars and charts for SVG
objects         reads DynamicScorers, and lists their settings with the origin of each value
kube            checks tokens and rights on the API server, and reads DynamicScorers
access          authenticates and authorizes users
sessions        stores login sessions, and protects forms
forms           adds the pages with forms: login and actions
actions         performs actions
"""
