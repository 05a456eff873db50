"""The web page: scores, reasons for missing ones, and actions.

service         the page, the JSON API and the fleet's metrics as a service
app             builds the application
guard           outer middleware: host names, proxies, headers
site            renders whole pages with access control
rendering       renders views as HTML, which open pages poll
states          names the states of a pair
pagedata        reads the data of pages from `dsf.fleet`
pages           the definition of a page, and the pages of plug-ins
views           the page's own pages
search          parses and executes searches
clustergroups   groups the fleet by ClusterSet or label
charts          pictures as numbers for SVG
objects         shows declared DynamicScorers and the origin of each setting
kube            asks the API server
access          authenticates and authorizes users
sessions        stores logins, and protects forms
forms           login, and pages with actions
actions         performs actions
"""
