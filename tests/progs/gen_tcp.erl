#!/usr/bin/env escript
%% gen_tcp.erl server PORT BACKEND | client PORT BACKEND ROUNDS
%% gen_tcp.erl node | talk NODE ROUNDS
%%
%% An echo over gen_tcp, whose ends take what comes in each of its modes, and one between two nodes. BACKEND is `inet`,
%% the driver, or `socket`. What a client opens stays open until the end of standard input; then it sends no more, and
%% the server answers that end with the checksum of all that came.
-mode(compile).

main(["server", Port, Backend]) ->
    {ok, Listener} = gen_tcp:listen(list_to_integer(Port), options(Backend) ++ [{reuseaddr, true}, {ip, {127, 0, 0, 1}}]),
    accept(Listener);
main(["client", Port, Backend, Rounds]) ->
    Modes = [passive, once, true, 5],
    All = [{Packet, There, Here} || Packet <- [4, 2, line], {There, Here} <- lists:zip(Modes, tl(Modes) ++ [hd(Modes)])],
    Parent = self(),
    Clients = [spawn_monitor(fun() -> client(list_to_integer(Port), Backend, How, list_to_integer(Rounds), Parent) end) || How <- All],
    [receive {open, Client} -> ok; {'DOWN', _, _, _, Why} -> fail(Why) end || {Client, _} <- Clients],
    io:format("done ~p~n", [length(All)]),
    eof = io:get_line(""),
    [Client ! finish || {Client, _} <- Clients],
    [receive {'DOWN', Ref, _, _, normal} -> ok; {'DOWN', Ref, _, _, Why} -> fail(Why) end || {_, Ref} <- Clients];
main(["node"]) ->
    register(echo, self()),
    io:format("up~n"),
    echo();
main(["talk", Name, Rounds]) ->
    Node = list_to_atom(Name),
    pong = net_adm:ping(Node),
    Talk = fun(Size) ->
        Ref = make_ref(),
        Want = bytes(Size, Size),
        {echo, Node} ! {self(), Ref, Want},
        receive {Ref, Want} -> ok after 60000 -> fail({no_answer, Size}) end
    end,
    [Talk(N * 7919 rem 3000) || N <- lists:seq(1, list_to_integer(Rounds))],
    [Talk(N * 300000) || N <- lists:seq(1, 10)],
    %% Many processes share the one connection, whose sends wait while it is busy.
    Several = [spawn_monitor(fun() -> [Talk(N * 131) || N <- lists:seq(1, 200)] end) || _ <- lists:seq(1, 20)],
    [receive {'DOWN', Ref, _, _, Why} -> normal = Why end || {_, Ref} <- Several],
    io:format("done ~p~n", [length(Several)]),
    eof = io:get_line(""),
    monitor_node(Node, true),
    true = erlang:disconnect_node(Node),
    receive {nodedown, Node} -> ok end,
    pong = net_adm:ping(Node),
    Talk(100000).

fail(Why) ->
    io:format(standard_error, "~0P~n", [Why, 40]),
    halt(1).

echo() ->
    receive {From, Ref, Bytes} -> From ! {Ref, Bytes} end,
    echo().

options(Backend) ->
    [{inet_backend, list_to_atom(Backend)}, binary, {packet, 4}, {active, false}, {exit_on_close, false}].

%% Its lines are shorter than the buffer of one, beyond which they would come in pieces.
bytes(line, Seed) -> <<(binary:part(bytes(1000, Seed), 0, Seed * 31 rem 900))/binary, $\n>>;
bytes(2, Seed) -> bytes(Seed * 7919 rem 65535, Seed);
bytes(4, Seed) -> bytes(Seed * 7919 rem 200000, Seed);
bytes(Size, Seed) ->
    Block = << <<($a + (Seed * 7 + N) rem 26)>> || N <- lists:seq(1, 101) >>,
    binary:part(binary:copy(Block, Size div 101 + 1), 0, Size).

accept(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Server = spawn(fun() -> receive start -> serve(Socket) end end),
    ok = gen_tcp:controlling_process(Socket, Server),
    Server ! start,
    accept(Listener).

serve(Socket) ->
    {ok, How} = gen_tcp:recv(Socket, 0),
    {Packet, Mode} = binary_to_term(How),
    ok = gen_tcp:send(Socket, <<>>),
    ok = inet:setopts(Socket, [{packet, Packet}, {buffer, 4096}]),
    arm(Socket, Mode),
    serve(Socket, Mode, erlang:md5_init()).

serve(Socket, Mode, Sum) ->
    case next(Socket, Mode) of
        {ok, Bytes} ->
            ok = gen_tcp:send(Socket, Bytes),
            serve(Socket, Mode, erlang:md5_update(Sum, Bytes));
        {error, closed} ->
            ok = gen_tcp:send(Socket, [base64:encode(erlang:md5_final(Sum)), $\n]),
            ok = gen_tcp:close(Socket)
    end.

client(Port, Backend, {Packet, There, Mode}, Rounds, Parent) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, options(Backend)),
    ok = gen_tcp:send(Socket, term_to_binary({Packet, There})),
    {ok, <<>>} = gen_tcp:recv(Socket, 0),
    ok = inet:setopts(Socket, [{packet, Packet}, {buffer, 4096}]),
    arm(Socket, Mode),
    Sum = lists:foldl(fun(Round, Sum) ->
        %% Several are under way at a time.
        All = [bytes(Packet, Round * 3 + N) || N <- lists:seq(1, 3)],
        [ok = gen_tcp:send(Socket, Bytes) || Bytes <- All],
        [{ok, Bytes} = next(Socket, Mode) || Bytes <- All],
        erlang:md5_update(Sum, All)
    end, erlang:md5_init(), lists:seq(1, Rounds)),
    Parent ! {open, self()},
    receive finish -> ok end,
    ok = gen_tcp:shutdown(Socket, write),
    Last = <<(base64:encode(erlang:md5_final(Sum)))/binary, $\n>>,
    {ok, Last} = next(Socket, Mode),
    {error, closed} = next(Socket, Mode),
    ok = gen_tcp:close(Socket).

arm(_, passive) -> ok;
arm(Socket, Mode) -> ok = inet:setopts(Socket, [{active, Mode}]).

next(Socket, passive) -> gen_tcp:recv(Socket, 0);
next(Socket, Mode) ->
    receive
        {tcp, Socket, Bytes} ->
            case Mode of once -> arm(Socket, Mode); _ -> ok end,
            {ok, Bytes};
        {tcp_passive, Socket} -> arm(Socket, Mode), next(Socket, Mode);
        {tcp_closed, Socket} -> {error, closed};
        {tcp_error, Socket, Why} -> {error, Why}
    end.
