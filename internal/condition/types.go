package condition

// Type is the kind of a condition, a row of the table of types.
type Type string

// The types of conditions. The table below says what each one means.
const (
	ModelReady           Type = "ModelReady"
	ReplicaFailed        Type = "ReplicaFailed"
	ReplicaSuspended     Type = "ReplicaSuspended"
	ReplicaPending       Type = "ReplicaPending"
	CloseDelimited       Type = "CloseDelimited"
	UpstreamUnreachable  Type = "UpstreamUnreachable"
	NodeLost             Type = "NodeLost"
	RedisUnavailable     Type = "RedisUnavailable"
	EnvoyUnresponsive    Type = "EnvoyUnresponsive"
	EnvoyRejectedConfig  Type = "EnvoyRejectedConfig"
	ConfigRejected       Type = "ConfigRejected"
	RestartRequired      Type = "RestartRequired"
	UpgradeFailed        Type = "UpgradeFailed"
	KubernetesFault      Type = "KubernetesFault"
	RayFault             Type = "RayFault"
	ResourceRejected     Type = "ResourceRejected"
	NameClash            Type = "NameClash"
	NamesRefused         Type = "NamesRefused"
	ModelNotListed       Type = "ModelNotListed"
	VersionNotListed     Type = "VersionNotListed"
	RequestsUncounted    Type = "RequestsUncounted"
	ConnectionsNearLimit Type = "ConnectionsNearLimit"
	FilesNearLimit       Type = "FilesNearLimit"
	MemoryNearLimit      Type = "MemoryNearLimit"
	SocketsNearLimit     Type = "SocketsNearLimit"
	StateNotWritable     Type = "StateNotWritable"
	CertificateFault     Type = "CertificateFault"
	FilterUnavailable    Type = "FilterUnavailable"
	HistoryDamaged       Type = "HistoryDamaged"
	UsageDamaged         Type = "UsageDamaged"
	BudgetReached        Type = "BudgetReached"

	SigningKeysUnavailable Type = "SigningKeysUnavailable"
	KeysUnavailable        Type = "KeysUnavailable"
	KeysDamaged            Type = "KeysDamaged"
	RedisLostData          Type = "RedisLostData"
	UsageNotShared         Type = "UsageNotShared"
	ClockDiffers           Type = "ClockDiffers"
)

// row is what the table says about one type.
type row struct {
	kind Type
	// severity is the severity of a condition that differs from its normal status.
	severity Severity
	// normal is the status that needs no attention.
	normal Status
	// global types are about the whole gateway. They are listed even while they are normal.
	global bool
	// meaning says when the condition differs from its normal status.
	meaning string
	// action says what the operator does about it. It is added to the message.
	action string
}

// types is the table of all types. A new type is one constant and one row.
var types = []row{
	{ModelReady, Warning, True, false,
		"The model has fewer usable replicas than it needs now. A model that is starting is Info.", ""},
	{ReplicaFailed, Error, False, false,
		"The replica has ended or does not get ready. Sluice starts it again after a pause. " +
			"After a failed start the condition stays until the replica is ready.",
		"Read the last lines of the replica's log, and correct the model's variables or resources."},
	{ReplicaSuspended, Warning, False, false,
		"Requests have failed at the replica, so it gets no new ones for a while.",
		"Look at the log of the replica if this happens again."},
	{ReplicaPending, Warning, False, false,
		"The model has replicas that fit on no node.",
		"Add a node, lower the model's resources, or lower its minimum of replicas."},
	{CloseDelimited, Info, False, false,
		"The replica ends responses by closing their connections. All requests of its model are managed, because only the relay notices a cut.",
		"Have the engine, or the proxy in front of it, answer by HTTP/1.1 with Content-Length or in chunks."},
	{UpstreamUnreachable, Warning, False, false,
		"A server of `upstreams` does not answer its health check, fails requests for a model, or its list of models has none that can be served.",
		"Check that the server runs, that its address in the file is right, and that it serves a model."},
	{NodeLost, Error, False, false,
		"A node that has joined does not answer. Its replicas are started on other nodes that have free resources.",
		"Check the node and its connection to this gateway."},
	{RedisUnavailable, Warning, False, true,
		"Redis does not answer. The gateway enforces only its last known share of the limits.",
		"Check Redis. The gateways share their limits again as soon as Redis answers."},
	{EnvoyUnresponsive, Error, False, true,
		"Envoy is not live, or it does not answer.",
		"Sluice starts Envoy again by itself. Read Envoy's log in the state directory if this lasts."},
	{FilterUnavailable, Warning, False, false,
		"Envoy cannot use Sluice's own filter, so ext_proc asks Sluice about each request. That costs more CPU, and nothing else changes.",
		"Use the version of Envoy that the message names, run `sluice restart`, or set `envoy.filter: ext_proc`."},
	{EnvoyRejectedConfig, Error, False, false,
		"Envoy has refused a resource and uses the version before it.",
		"Change the part of the configuration that the message names. Report a bug if there is none."},
	{ConfigRejected, Error, False, true,
		"The newest configuration has faults. The configuration before it stays in force.",
		"Correct the file. `sluice check FILE` shows the same faults."},
	{RestartRequired, Info, False, true,
		"Fields of the file have new values, and the gateway still runs with the old ones.",
		"Run `sluice restart`: running requests go on. For another `state_dir` stop the gateway and start it again."},
	{UpgradeFailed, Warning, False, true,
		"The last restart for an upgrade has failed. The process before it goes on with everything.",
		"Correct what the message names, and run `sluice restart` again."},
	{KubernetesFault, Error, False, false,
		"A Kubernetes cluster does not answer, or a model cannot be launched there.", ""},
	{RayFault, Error, False, false,
		"Ray does not answer or refuses calls, another gateway starts jobs of the same installation without sharing them, or Redis does not " +
			"answer, by which gateways share them. Replicas that answer stay in use.", ""},
	{ResourceRejected, Error, False, false,
		"A custom resource has faults, or custom resources cannot be read or written.", ""},
	{NameClash, Warning, False, false,
		"A discovered server or a custom resource asks for a name that belongs to the configuration. It does not get the name.",
		"Give one of them another name. A server that serves the very model of that name joins it with `join: true` at its entry of `upstreams`."},
	{NamesRefused, Warning, False, false,
		"A discovered server lists models under names that cannot be used, items without a name, or too many models. Sluice serves the other models.",
		"Correct the names at the server."},
	{ModelNotListed, Warning, False, false,
		"A server does not list a model under the name that the file gives for it there, or an adapter of the model. " +
			"vLLM is also asked whether it lists the model under its own name. The server gets requests for it all the same.",
		"Set or correct `model` at that entry of the model's `upstreams`, the name in `adapters`, or the name at the server. " +
			"Load the adapter at each server of the model."},
	{VersionNotListed, Info, False, false,
		"The file names a release of an engine that the catalogue does not list. The model has the variables of the newest version below it.",
		"Pass flags that are newer than that version in `args`, or define the version under `engines`."},
	{RequestsUncounted, Warning, False, false,
		"Requests of before a restart run that do not count against the limits. New requests may exceed these meanwhile.",
		"It ends with these requests, or when Envoy answers. If it lasts, read Envoy's log in the state directory."},
	{ConnectionsNearLimit, Warning, False, true,
		"Clients hold nearly as many connections as Envoy may have.",
		"Raise the limit of open files (`ulimit -n`, LimitNOFILE), or find the source of the connections."},
	{FilesNearLimit, Warning, False, true,
		"The gateway has nearly as many files and connections open as it may.",
		"Raise the limit of open files (`ulimit -n`, LimitNOFILE)."},
	{MemoryNearLimit, Warning, False, true,
		"The gateway uses nearly as much memory as it may.",
		"Raise the memory limit of the gateway, or lower its limits of buffered bytes."},
	{SocketsNearLimit, Warning, False, true,
		"Clients hold nearly as many WebSockets as the gateway may have.",
		"Raise `realtime.max_sockets`, or lower `realtime.per_tenant` or `realtime.idle`."},
	{StateNotWritable, Error, False, true,
		"The state directory cannot be written. Running requests and replicas go on.",
		"Free space on its file system, or give the gateway the right to write there. If its files were removed, stop the gateway and start it again."},
	{SigningKeysUnavailable, Error, False, false,
		"The signing keys of `auth.jwt` cannot be read. Tokens are verified with the keys of before. A token that none of them has signed gets 503.",
		"Check the address or the file in `auth.jwt`. Sluice tries again each second."},
	{KeysUnavailable, Error, False, false,
		"The keys of run time cannot be read, although Redis answers if there is one. " +
			"Keys that were read before stay in force, also those that were revoked since. " +
			"Before the first reading, callers with such keys get 503.",
		"Give the user of `redis` the rights to the keys `sluice:keys*`. " +
			"Without `redis`, correct or remove `keys.json` in the state directory. Sluice tries again by itself."},
	{KeysDamaged, Warning, False, false,
		"Some keys of run time are damaged in Redis. A gateway that knew such a key keeps it as it was. At any other one its callers get 401.",
		"Revoke the key (`sluice keys revoke ID`), and make a new one. Find out who else writes to `redis`."},
	{RedisLostData, Warning, False, false,
		"Redis came back without changes of the keys of run time that this gateway knew: it was emptied, or it came back from an older snapshot. " +
			"The gateway has written the keys again as it knew them, those that were revoked not. The condition ends after an hour.",
		"Find out who has emptied `redis`, and turn on its persistence. Look whether all keys are there (`sluice keys list`), " +
			"and all limits that were changed at run time."},
	{UsageNotShared, Warning, False, false,
		"Gateways that share `redis` do not tell each other their usage, although Redis answers. " +
			"Each counts `budgets` by its own requests and by what it knew of the others.",
		"Give the user of `redis` the rights to the keys `{sluice:usage}:*`, and look whether all masters of the cluster answer. " +
			"Sluice tries again by itself."},
	{ClockDiffers, Warning, False, false,
		"The clocks of this machine and of `redis` differ by more than 5 s. Limits of all gateways hold by the clock of `redis`. " +
			"Days of `budgets`, hours of usage, and the ends of keys, tokens and certificates hold by the clock of each gateway.",
		"Synchronise the clocks of the machines, for example by chrony."},
	{CertificateFault, Error, False, false,
		"The certificate of `listen`, or the one that the gateway shows to `redis`, ends within a week, or its files cannot be used as they are now. " +
			"New connections get the last usable one.",
		"Replace the files of `tls` or `redis`. Sluice reads them again by itself."},
	{BudgetReached, Warning, False, false,
		"A tenant or a key has used as much as the soft or the hard bound of one of its `budgets`. " +
			"Above the hard one its requests get 429 `insufficient_quota`.",
		"Look at `sluice usage`. Raise the budget in the file, or wait until its day or month ends."},
	{UsageDamaged, Warning, False, false,
		"A file of the ledger of usage has damaged lines, or cannot be read. Budgets and answers about usage may lack what these lines counted.",
		"Check the disk of the state directory. A damaged file stays beside its new version, as `….damaged-TIME`. The condition ends with the next start."},
	{HistoryDamaged, Warning, False, false,
		"A file of the history is damaged and is not used. The history has a gap, and goes on in a new file.",
		"Check the disk of the state directory. The condition ends with the next start."},
}

// rowOf returns the row of a type. A type without a row is a bug.
func rowOf(t Type) *row {
	for i := range types {
		if types[i].kind == t {
			return &types[i]
		}
	}
	panic("condition type without a row: " + string(t))
}
